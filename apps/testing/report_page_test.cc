// The report of a training, as a browser shows it. Debian's Chromium reads the page; without it the
// part that needs a browser is skipped.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <tuple>
#include <vector>

#include "lathe/apps/testing/cli_testing.h"
#include "lathe/core/base/file.h"
#include "lathe/core/json/json_text.h"

namespace lathe {
namespace {

constexpr char kBrowser[] = "/usr/bin/chromium";

class ReportPageTest : public CliTest {
 protected:
  // Returns the page as the browser holds it, after its scripts and styles. Its messages go to
  // messages_. `more` are options of the browser.
  std::string Dom(const std::string& name, const std::string& more = "") {
    const std::string command =
        std::string(kBrowser) + " --headless --no-sandbox --disable-gpu --enable-logging=stderr" +
        " --user-data-dir=" + Path("browser") + more + " --dump-dom file://" + Path(name) + " > " +
        Path("dom.html") + " 2> " + Path("messages");
    EXPECT_EQ(std::system(command.c_str()), 0) << Read("messages");
    messages_ = Read("messages");
    return Read("dom.html");
  }

  // Returns how often the browser loads out/report.html in so many seconds of its own time, which
  // passes at once. `action` is a script that runs at each load.
  std::string LoadsOf(const std::string& page, const std::string& action, int seconds) {
    Write("out/report.html", page + "<script>" + action + "</script>");
    // The page is in a frame, since the browser shows a page itself as it was before a reload.
    Write("frame.html",
          "<!DOCTYPE html><body data-loads=0><iframe src=\"out/report.html\" "
          "onload=\"++document.body.dataset.loads\"></iframe>");
    const std::string dom =
        Dom("frame.html", " --virtual-time-budget=" + std::to_string(seconds) + "000");
    EXPECT_EQ(messages_.find("CONSOLE"), std::string::npos) << messages_;
    const std::string name = "data-loads=\"";
    const size_t begin = dom.find(name) + name.size();
    return dom.substr(begin, dom.find('"', begin) - begin);
  }

  // Returns what a script, the body of a function, returns in a page of this width in pixels. All
  // numbers are open.
  nlohmann::json ResultAt(int width, const std::string& page, const std::string& script) {
    Write("measured.html", page +
                               "<script>addEventListener('load', () => { for (const numbers of "
                               "document.querySelectorAll('details')) numbers.open = true; "
                               "parent.postMessage(JSON.stringify((() => {" +
                               script + "})()), '*'); });</script>");
    Write("frame.html",
          "<!DOCTYPE html><meta charset=\"utf-8\"><body><script>addEventListener('message', "
          "(event) => { const pre = document.body.appendChild(document.createElement('pre')); "
          "pre.textContent = encodeURI(event.data); });</script><iframe src=\"measured.html\" "
          "style=\"width:" +
              std::to_string(width) + "px;height:700px;border:0\"></iframe>");
    const std::string dom = Dom("frame.html", " --virtual-time-budget=5000");
    EXPECT_EQ(messages_.find("CONSOLE"), std::string::npos) << messages_;
    const std::string open = "<pre>";
    const size_t begin = dom.find(open) + open.size();
    const std::string text = Decoded(dom.substr(begin, dom.find("</pre>", begin) - begin));
    return ParseJson(text);
  }

  // Trains with twelve classes whose long names differ in their ends only. Returns the report.
  std::string PageOfLongNames() {
    std::string csv = "sentence,label\n";
    for (int row = 0; row < 48; ++row) {
      csv +=
          "the film was good,\"complaints about a checking-or-savings account that was closed, "
          "the money and the fees, number " +
          std::to_string(row % 12) + "\"\n";
    }
    Write("train.csv", csv);
    Write("dev.csv", csv);
    const RunResult run = Train({"--do_eval", "--max_steps", "2"});
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return Read("out/report.html");
  }

  std::string messages_;

 private:
  // Undoes encodeURI.
  static std::string Decoded(const std::string& text) {
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '%') {
        out += static_cast<char>(std::stoi(text.substr(i + 1, 2), nullptr, 16));
        i += 2;
      } else {
        out += text[i];
      }
    }
    return out;
  }
};

// Returns what lies in the figure of this name.
std::string FigureOf(const std::string& page, const std::string& name) {
  const size_t begin = page.find("<figure id=\"" + name + "\"");
  return begin == std::string::npos ? ""
                                    : page.substr(begin, page.find("</figure>", begin) - begin);
}

int64_t Count(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  return std::distance(std::sregex_iterator(text.begin(), text.end(), regex), {});
}

// Returns what lies in the section with this heading.
std::string SectionOf(const std::string& page, const std::string& id) {
  const size_t begin = page.find("<h2 id=\"" + id + "\"");
  return begin == std::string::npos ? ""
                                    : page.substr(begin, page.find("</section>", begin) - begin);
}

// Two classes, each with three scores; the calibration; a matrix of two by two; and the errors.
void ExpectFiguresOfTheEvaluation(const std::string& dom) {
  const std::string classes = FigureOf(dom, "classes");
  EXPECT_EQ(Count(classes, "<rect class=\"s[0-2]\"[^>]*><title>|>undefined [a-z0-9]+</text>"), 6)
      << classes;
  EXPECT_EQ(Count(classes, "<th scope=\"row\">[^<]+</th>(<td>([0-9.e-]+|undefined)</td>){3}"), 2)
      << classes;
  const std::string calibration = FigureOf(dom, "calibration");
  EXPECT_GE(Count(calibration, "<circle class=\"s0\""), 1) << calibration;
  EXPECT_EQ(Count(calibration, "class=\"reference\""), 1) << calibration;
  const std::string matrix = SectionOf(dom, "confusion");
  EXPECT_EQ(Count(matrix, "<td class=\"right\" style=\"--share:[0-9.]+\">[0-9,]+</td>"), 2)
      << matrix;
  EXPECT_EQ(Count(matrix, "<td class=\"wrong\" style=\"--share:[0-9.]+\">[0-9,]+</td>"), 2)
      << matrix;
}

TEST_F(ReportPageTest, HoldsTheNumbersInABrowser) {
  const RunResult run = Train({"--do_eval", "--eval_strategy", "epoch", "--num_train_epochs", "3"});
  ASSERT_EQ(run.exit_code, 0) << run.out << run.err;
  EXPECT_EQ(run.err, "");
  EXPECT_NE(run.out.find("the report is in " + Path("out/report.html")), std::string::npos);
  EXPECT_TRUE(Exists("out/plots/loss.svg"));
  EXPECT_TRUE(Exists("out/plots/precision_recall.svg"));
  EXPECT_TRUE(Exists("out/plots/confusion_matrix.svg"));
  const std::string page = Read("out/report.html");
  EXPECT_NE(page.find("The training has ended, after step 36 of 36"), std::string::npos);
  EXPECT_EQ(page.find("http-equiv"), std::string::npos);
  EXPECT_NE(page.find("eval_accuracy"), std::string::npos);
  // The folder isn't empty any more.
  EXPECT_NE(page.find("--num_train_epochs 3 --overwrite_output_dir</code>"), std::string::npos);

  if (!std::filesystem::exists(kBrowser)) GTEST_SKIP() << "there is no " << kBrowser;
  const std::string dom = Dom("out/report.html");
  EXPECT_EQ(messages_.find("CONSOLE"), std::string::npos) << messages_;
  for (const char* name :
       {"loss", "metrics", "learning_rate", "grad_norm", "throughput", "memory"}) {
    const std::string figure = FigureOf(dom, name);
    // A curve of three points or more. The line in the legend has two.
    EXPECT_EQ(Count(figure, "<path class=\"s0\" d=\"M[^\"]*L[^\"]*L"), 1) << name << figure;
  }
  // A row for each step, and the loss of the validation data at the end of each epoch.
  const std::string loss = FigureOf(dom, "loss");
  EXPECT_EQ(Count(loss, "<th scope=\"row\">"), 36);
  EXPECT_EQ(Count(loss, "</td><td>[0-9.e-]+</td></tr>"), 3);
  EXPECT_GE(Count(FigureOf(dom, "lengths"), "<rect class=\"s0\""), 2);
  ExpectFiguresOfTheEvaluation(dom);
  const std::string curve = FigureOf(dom, "precision_recall");
  EXPECT_EQ(Count(curve, "<path class=\"s0\" d=\"M[^\"]*V[^\"]*H"), 1) << curve;
  EXPECT_EQ(Count(curve, "<th scope=\"row\">[0-9.]+</th><td>[0-9.]+</td></tr>"), 11) << curve;
  EXPECT_EQ(Count(curve, "tabindex=\"0\""), 1) << curve;  // the table
}

TEST_F(ReportPageTest, HoldsTheErrorsInABrowser) {
  // A model that has learned nothing is wrong somewhere.
  const RunResult run = Train({"--do_eval", "--max_steps", "1", "--learning_rate", "1e-9"});
  ASSERT_EQ(run.exit_code, 0) << run.out << run.err;
  const int64_t errors = Count(Read("out/eval_errors.tsv"), "\n") - 1;
  ASSERT_GE(errors, 1);
  if (!std::filesystem::exists(kBrowser)) GTEST_SKIP() << "there is no " << kBrowser;
  const std::string section = SectionOf(Dom("out/report.html"), "errors");
  EXPECT_EQ(Count(section, "<tr role=\"row\"><td role=\"cell\" data-name=\"line\">[0-9]+</td>"),
            errors)
      << section;
  EXPECT_EQ(Count(section, "data-name=\"sentence\">[^<]+</td>"), errors) << section;
}

// A heading that sticks to the top of its box must leave room for the rows.
TEST_F(ReportPageTest, HeadingsLeaveRoomOnAPhone) {
  const std::string page = PageOfLongNames();
  if (!std::filesystem::exists(kBrowser)) GTEST_SKIP() << "there is no " << kBrowser;
  const nlohmann::json headings = ResultAt(
      360, page,
      "return [...document.querySelectorAll('.scroll')].filter((box) => "
      "box.querySelector('thead') && box.scrollHeight > box.clientHeight)"
      ".map((box) => [box.getAttribute('aria-label'), box.querySelector('thead').offsetHeight, "
      "box.clientHeight, Math.max(0, ...[...box.querySelectorAll('.matrix th:first-child')]"
      ".map((th) => th.offsetWidth)), box.clientWidth]);");
  bool has_matrix = false, has_curves = false;
  for (const auto& [label, head, height, first, width] :
       headings.get<std::vector<std::tuple<std::string, int, int, int, int>>>()) {
    if (label == "Most confident errors") continue;  // its headings are hidden
    EXPECT_GE(head, 20) << label;
    EXPECT_LE(head, height / 2) << label;
    EXPECT_LE(first, width / 2) << label;
    has_matrix = has_matrix || label == "Confusion matrix";
    has_curves = has_curves || label.starts_with("Precision and recall");
  }
  EXPECT_TRUE(has_matrix && has_curves) << headings;
}

// The smallest text says that a score is undefined.
TEST_F(ReportPageTest, TextsOfFiguresAreLargeEnoughOnAPhone) {
  const std::string page = PageOfLongNames();
  if (!std::filesystem::exists(kBrowser)) GTEST_SKIP() << "there is no " << kBrowser;
  const nlohmann::json sizes =
      ResultAt(375, page,
               "return [...document.querySelectorAll('.plot text')].map((text) => "
               "parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a)"
               ".filter((size) => size > 0);");
  ASSERT_GE(sizes.size(), 50u);
  EXPECT_GE(*std::min_element(sizes.begin(), sizes.end()), 10.0);
}

// Neither a word that has room on a line is on two, nor is the page wider than the screen.
TEST_F(ReportPageTest, TheSummaryKeepsWordsWholeOnAPhone) {
  const std::string page = PageOfLongNames();
  if (!std::filesystem::exists(kBrowser)) GTEST_SKIP() << "there is no " << kBrowser;
  const nlohmann::json broken = ResultAt(
      375, page,
      "const broken = []; for (const cell of document.querySelectorAll('.facts th, .facts td')) { "
      "const text = cell.firstChild; for (const word of "
      "text.data.matchAll(/(?<!\\S)\\S{1,30}(?!\\S)/g)) "
      "{ const range = document.createRange(); range.setStart(text, word.index); "
      "range.setEnd(text, word.index + word[0].length); "
      "if (range.getClientRects().length > 1 && !/[\\/-]/.test(word[0])) broken.push(word[0]); } } "
      "return {broken, cells: document.querySelectorAll('.facts td').length, "
      "wider: document.documentElement.scrollWidth - innerWidth};");
  EXPECT_EQ(broken.at("broken"), nlohmann::json::array());
  EXPECT_GE(broken.at("cells"), 8);
  EXPECT_LE(broken.at("wider"), 0);
}

TEST_F(ReportPageTest, HasCurvesWithoutLogs) {
  const RunResult run = Train({"--logging_steps", "500"});
  ASSERT_EQ(run.exit_code, 0) << run.out << run.err;
  const std::string page = Read("out/report.html");
  for (const char* name : {"loss", "learning_rate", "grad_norm"}) {
    const std::string figure = FigureOf(page, name);
    EXPECT_EQ(Count(figure, "<path class=\"s0\" d=\"M[^\"]*L[^\"]*L"), 1) << name << figure;
  }
}

TEST_F(ReportPageTest, TellsThatATrainingWasInterrupted) {
  const RunResult run = Train({"--num_train_epochs", "1000"}, {.interrupt_after = "step 5/"});
  EXPECT_EQ(run.exit_code, 128 + SIGINT) << run.out << run.err;
  const std::string page = Read("out/report.html");
  EXPECT_NE(page.find("The training has ended early, after step "), std::string::npos);
  EXPECT_EQ(page.find("http-equiv"), std::string::npos);
}

// A killed process can't write the page again, so a script on it looks at its age.
TEST_F(ReportPageTest, APageThatIsOldSaysSo) {
  const RunResult run = Train({"--num_train_epochs", "100000"},
                              {.interrupt_after = "step 5/", .interrupt_signal = SIGKILL});
  ASSERT_EQ(run.exit_code, 128 + SIGKILL) << run.out << run.err;
  std::string page = Read("out/report.html");
  EXPECT_EQ(page.find("The training runs"), std::string::npos);
  EXPECT_NE(page.find("The training was at step "), std::string::npos);
  if (!std::filesystem::exists(kBrowser)) GTEST_SKIP() << "there is no " << kBrowser;
  EXPECT_NE(Dom("out/report.html").find("<p id=\"age\" role=\"status\"></p>"), std::string::npos);
  EXPECT_EQ(messages_.find("CONSOLE"), std::string::npos) << messages_;
  const std::regex time("datetime=\"[^\"]*\"");
  Write("out/report.html", std::regex_replace(page, time, "datetime=\"2020-01-02T03:04:05Z\""));
  const std::string dom = Dom("out/report.html");
  EXPECT_EQ(Count(dom,
                  "role=\"status\">Last written [0-9]+ days ago; the training has perhaps "
                  "ended\\.</p>"),
            1)
      << dom.substr(0, 8000);
  EXPECT_EQ(messages_.find("CONSOLE"), std::string::npos) << messages_;
}

// A reload closes what is open and takes the focus away, so it waits while a reader needs them.
TEST_F(ReportPageTest, APageThatIsReadIsNotLoadedAgain) {
  const RunResult run = Train({"--num_train_epochs", "100000"},
                              {.interrupt_after = "step 5/", .interrupt_signal = SIGKILL});
  ASSERT_EQ(run.exit_code, 128 + SIGKILL) << run.out << run.err;
  const std::string page = Read("out/report.html");
  if (!std::filesystem::exists(kBrowser)) GTEST_SKIP() << "there is no " << kBrowser;
  EXPECT_EQ(LoadsOf(page, "", 50), "3");
  EXPECT_EQ(LoadsOf(page, "document.querySelector('details').open = true;", 50), "1");
  EXPECT_EQ(LoadsOf(page, "document.querySelector('summary').focus();", 50), "1");
  // It is made up for as soon as the numbers are closed.
  EXPECT_EQ(LoadsOf(page,
                    "const numbers = document.querySelector('details'); numbers.open = true; "
                    "setTimeout(() => { numbers.open = false; }, 30000);",
                    50),
            "2");
}

TEST_F(ReportPageTest, TellsThatATrainingHasFailed) {
  const RunResult run = Train({"--learning_rate", "1e30", "--max_grad_norm", "0"});
  EXPECT_NE(run.exit_code, 0);
  const std::string page = Read("out/report.html");
  EXPECT_NE(page.find("The training has ended before its last step"), std::string::npos);
}

// The second training has no evaluations, and the third no report.
TEST_F(ReportPageTest, OldFiguresLeaveWithTheirReport) {
  ASSERT_EQ(Train({"--do_eval", "--eval_strategy", "epoch", "--num_train_epochs", "1"}).exit_code,
            0);
  for (const char* name : {"loss", "metrics", "confusion_matrix"})
    EXPECT_TRUE(Exists("out/plots/" + std::string(name) + ".svg")) << name;
  Write("out/plots/mine.svg", "<svg></svg>");
  ASSERT_EQ(Train({"--overwrite_output_dir", "--max_steps", "3"}).exit_code, 0);
  EXPECT_TRUE(Exists("out/plots/loss.svg"));
  for (const char* name : {"metrics", "confusion_matrix"})
    EXPECT_FALSE(Exists("out/plots/" + std::string(name) + ".svg")) << name;
  ASSERT_EQ(Train({"--overwrite_output_dir", "--max_steps", "3", "--no_report"}).exit_code, 0);
  EXPECT_FALSE(Exists("out/plots/loss.svg"));
  EXPECT_FALSE(Exists("out/report.html"));
  EXPECT_EQ(Read("out/plots/mine.svg"), "<svg></svg>");
}

TEST_F(ReportPageTest, CanBeLeftOut) {
  const RunResult run = Train({"--no_report"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_FALSE(Exists("out/report.html"));
  EXPECT_FALSE(Exists("out/plots"));
}

}  // namespace
}  // namespace lathe
