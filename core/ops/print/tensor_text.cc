#include "lathe/core/ops/print/tensor_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <type_traits>
#include <vector>

namespace lathe {
namespace {

// A number's text as sign and integer part, fraction without trailing zeros, and exponent.
struct NumberText {
  std::string whole, fraction, exponent;  // "-1", "25", "+07" or ""
};

// Returns the shortest decimal digits that are read back as the same T: "1.25e-05". Zero gives
// "0e+00".
template <typename T>
std::string ShortestScientific(T value) {
  char text[64];
  if constexpr (std::is_arithmetic_v<T>) {
    const auto end = std::to_chars(text, text + sizeof(text), value, std::chars_format::scientific);
    return std::string(text, end.ptr);
  } else {
    const auto wide = static_cast<float>(value);
    for (int digits = 0; digits < 9; ++digits) {
      std::snprintf(text, sizeof(text), "%.*e", digits, static_cast<double>(wide));
      if (T(std::strtof(text, nullptr)).bits == value.bits) break;
    }
    // Zeros at the end of the digits are no part of the shortest text.
    std::string shortest = text;
    const size_t e = shortest.find('e'), point = shortest.find('.');
    if (point == std::string::npos) return shortest;
    size_t last = e;
    while (shortest[last - 1] == '0') --last;
    if (shortest[last - 1] == '.') --last;
    return shortest.substr(0, last) + shortest.substr(e);
  }
}

// Splits "-1.25e-05".
NumberText Split(const std::string& text) {
  NumberText parts;
  const size_t e = std::min(text.find('e'), text.size());
  if (e < text.size()) parts.exponent = text.substr(e + 1);
  const size_t point = std::min(text.find('.'), e);
  parts.whole = text.substr(0, point);
  if (point < e) parts.fraction = text.substr(point + 1, e - point - 1);
  while (!parts.fraction.empty() && parts.fraction.back() == '0') parts.fraction.pop_back();
  return parts;
}

std::string Printed(const char* format, int precision, double value) {
  std::string text(512, '\0');
  const int length = std::snprintf(text.data(), text.size(), format, precision, value);
  text.resize(static_cast<size_t>(length));
  return text;
}

// Returns the number in scientific form with at most `precision` digits behind the point.
template <typename T>
NumberText Scientific(T value, int precision) {
  NumberText parts = Split(ShortestScientific(value));
  if (std::ssize(parts.fraction) <= precision) return parts;
  return Split(Printed("%.*e", precision, static_cast<double>(value)));
}

// Returns the number without an exponent, with at most `precision` digits behind the point.
template <typename T>
NumberText Positional(T value, int precision) {
  const NumberText parts = Split(ShortestScientific(value));
  const int64_t exponent = std::atoi(parts.exponent.c_str());
  const int64_t behind = std::max<int64_t>(0, std::ssize(parts.fraction) - exponent);
  if (behind > precision) return Split(Printed("%.*f", precision, static_cast<double>(value)));
  // The digits themselves: printing all of a large number's would show more than the shortest.
  const bool negative = parts.whole[0] == '-';
  std::string digits = parts.whole.substr(negative ? 1 : 0) + parts.fraction;
  NumberText moved;
  moved.whole = negative ? "-" : "";
  if (exponent < 0) {
    moved.whole += "0";
    moved.fraction = std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
    if (digits == "0") moved.fraction.clear();
  } else {
    const auto whole = static_cast<size_t>(exponent) + 1;
    if (digits.size() < whole) digits.append(whole - digits.size(), '0');
    moved.whole += digits.substr(0, whole);
    moved.fraction = digits.substr(whole);
  }
  return moved;
}

std::string Padded(const std::string& text, size_t width) {
  return text.size() >= width ? text : std::string(width - text.size(), ' ') + text;
}

// How all floating numbers of a tensor are printed, so that their points stand below each other.
template <typename T>
class FloatFormat {
 public:
  FloatFormat(const std::vector<T>& values, int precision) : precision_(precision) {
    // The numbers are compared in their own type, as NumPy does.
    using M = std::conditional_t<std::is_arithmetic_v<T>, T, float>;
    M largest = 0, smallest = std::numeric_limits<M>::infinity();
    bool all_finite = true, negative_infinity = false;
    for (const T element : values) {
      const M value = std::fabs(static_cast<M>(element));
      if (!std::isfinite(value)) {
        all_finite = false;
        negative_infinity |= static_cast<M>(element) < 0;
      } else if (value != 0) {
        largest = std::max(largest, value);
        smallest = std::min(smallest, value);
      }
    }
    // NumPy's limit is a power of ten whose numbers the type tells apart.
    constexpr M kLargest = std::is_same_v<T, double> ? 1e8 : std::is_same_v<T, Float16> ? 1e3 : 1e6;
    exponents_ = largest != 0 && (largest >= kLargest || smallest < M(1e-4) ||
                                  static_cast<M>(T(largest / smallest)) > M(1000));
    size_t fraction = 0, exponent = 0;
    for (const T value : values) {
      if (!std::isfinite(static_cast<M>(value))) continue;
      const NumberText text = Of(value);
      left_ = std::max(left_, text.whole.size());
      fraction = std::max(fraction, text.fraction.size());
      exponent = std::max(exponent, text.exponent.size());
    }
    exponent_digits_ = exponent == 0 ? 0 : exponent - 1;
    fraction_ = fraction;
    if (exponents_) precision_ = static_cast<int>(fraction);
    right_ = exponents_ ? exponent_digits_ + 2 + fraction : fraction;
    if (!all_finite) {
      const auto needs = [&](size_t length) {
        if (length > right_ + 1) left_ = std::max(left_, length - right_ - 1);
      };
      needs(3);  // "nan", "inf"
      if (negative_infinity) needs(4);
    }
  }

  std::string operator()(T value) const {
    const auto wide = static_cast<double>(value);
    if (!std::isfinite(wide)) {
      return Padded(std::isnan(wide) ? "nan" : wide < 0 ? "-inf" : "inf", left_ + right_ + 1);
    }
    NumberText text = Of(value);
    if (exponents_) {
      // Digits behind the shortest ones are those of the exact number, not zeros.
      if (text.fraction.size() < fraction_) text = Split(Printed("%.*e", precision_, wide));
      text.fraction.append(fraction_ - std::min(fraction_, text.fraction.size()), '0');
      const std::string digits = text.exponent.substr(1);
      return Padded(text.whole, left_) + "." + text.fraction + "e" + text.exponent[0] +
             std::string(exponent_digits_ - std::min(exponent_digits_, digits.size()), '0') +
             digits;
    }
    text.fraction.append(right_ - std::min(right_, text.fraction.size()), ' ');
    return Padded(text.whole, left_) + "." + text.fraction;
  }

 private:
  NumberText Of(T value) const {
    return exponents_ ? Scientific(value, precision_) : Positional(value, precision_);
  }
  int precision_;
  bool exponents_ = false;
  size_t left_ = 0, right_ = 0, fraction_ = 0, exponent_digits_ = 0;
};

// Returns a scalar's text, as str() of NumPy's scalars.
template <typename T>
std::string ScalarText(T value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value ? "True" : "False";
  } else if constexpr (std::is_integral_v<T>) {
    return std::to_string(value);
  } else {
    const auto wide = static_cast<double>(value);
    if (!std::isfinite(wide)) return std::isnan(wide) ? "nan" : wide < 0 ? "-inf" : "inf";
    constexpr double kLargest = std::is_same_v<T, double>    ? 1e16
                                : std::is_same_v<T, Float16> ? 1e3
                                                             : 1e6;
    if (wide != 0 && (std::fabs(wide) < 1e-4 || std::fabs(wide) >= kLargest)) {
      const NumberText text = Split(ShortestScientific(value));
      return text.whole + (text.fraction.empty() ? "" : "." + text.fraction) + "e" + text.exponent;
    }
    const NumberText text = Positional(value, 400);
    return text.whole + "." + (text.fraction.empty() ? "0" : text.fraction);
  }
}

// Writes a tensor's elements, whose texts it has, in brackets and lines.
class Layout {
 public:
  Layout(const Shape& shape, std::function<std::string(int64_t)> text_of, bool summarises,
         const PrintOptions& options)
      : shape_(shape), text_of_(std::move(text_of)), summarises_(summarises), options_(options) {}

  std::string Text() const { return Of(0, 0, " ", options_.line_width); }

 private:
  bool Summarised(size_t axis) const {
    return summarises_ && 2 * options_.edge_items < shape_[axis];
  }

  // Calls body(i) for the shown indices of an axis; i is -1 in place of those that are left out.
  template <typename Body>
  void ForShown(size_t axis, const Body& body) const {
    const int64_t n = shape_[axis], edge = options_.edge_items;
    const bool summarised = Summarised(axis);
    for (int64_t i = 0; i < n; ++i) {
      if (summarised && i == edge) {
        body(-1);
        i = n - edge;
      }
      body(i);
    }
  }

  // Adds a word to the line, or begins a new line if the word does not fit.
  static void Extend(std::string& text, std::string& line, const std::string& word, size_t width,
                     const std::string& indent) {
    if (line.size() + word.size() > width && line.size() > indent.size()) {
      text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
      line = indent;
    }
    line += word;
  }

  // Returns the text of the part of the tensor whose first element has the index `at`.
  std::string Of(size_t axis, int64_t at, const std::string& indent, int width) const {
    if (axis == shape_.size()) return text_of_(at);
    int64_t stride = 1;
    for (size_t d = axis + 1; d < shape_.size(); ++d) stride *= shape_[d];
    const bool is_row = axis + 1 == shape_.size();
    std::string text, line = indent;
    ForShown(axis, [&](int64_t i) {
      const std::string part =
          i < 0 ? "..." : Of(axis + 1, at + i * stride, indent + " ", width - 1);
      const bool is_last = i == shape_[axis] - 1;
      if (is_row) {
        Extend(text, line, part, static_cast<size_t>(std::max(0, width - 1)), indent);
        if (!is_last) line += " ";
      } else {
        text += indent + part;
        if (!is_last) text += std::string(shape_.size() - axis - 1, '\n');
      }
    });
    if (is_row) text += line;
    return "[" + text.substr(indent.size()) + "]";
  }

  const Shape& shape_;
  std::function<std::string(int64_t)> text_of_;
  bool summarises_;
  const PrintOptions& options_;
};

// Calls body(i) for the index of each element that a summary shows.
void ForShownElements(const Shape& shape, int64_t edge, size_t axis, int64_t at,
                      const std::function<void(int64_t)>& body) {
  if (axis == shape.size()) return body(at);
  const int64_t n = shape[axis];
  for (int64_t i = 0; i < n; ++i) {
    if (n > 2 * edge && i == edge) i = n - edge;
    if (i < n) ForShownElements(shape, edge, axis + 1, at * n + i, body);
  }
}

}  // namespace

std::string ToString(const Tensor& x, const PrintOptions& options) {
  if (!x.defined()) return "undefined";
  if (!x.allocated()) return "unallocated";
  if (x.numel() == 0) return "[]";
  const Tensor host = x.To(Device{});
  return DispatchAll(x.dtype(), [&](auto tag) -> std::string {
    using T = decltype(tag);
    const T* const values = static_cast<const T*>(host.raw_data());
    if (x.ndim() == 0) return ScalarText(values[0]);
    const bool summarises = x.numel() > options.threshold;
    std::vector<T> shown;
    const auto show = [&](int64_t i) { shown.push_back(values[i]); };
    ForShownElements(x.shape(), summarises ? options.edge_items : x.numel(), 0, 0, show);
    std::function<std::string(int64_t)> text_of;
    if constexpr (std::is_same_v<T, bool>) {
      text_of = [values](int64_t i) { return values[i] ? " True" : "False"; };
    } else if constexpr (std::is_integral_v<T>) {
      size_t width = 0;
      for (const T value : shown) width = std::max(width, std::to_string(value).size());
      text_of = [values, width](int64_t i) { return Padded(std::to_string(values[i]), width); };
    } else {
      text_of = [values, format = FloatFormat<T>(shown, options.precision)](int64_t i) {
        return format(values[i]);
      };
    }
    return Layout(x.shape(), std::move(text_of), summarises, options).Text();
  });
}

std::ostream& operator<<(std::ostream& out, const Tensor& x) { return out << ToString(x); }

}  // namespace lathe
