// Instances of templates that many tests need. Without optimization, a test then calls those of
// instances.cc instead of compiling its own. LATHE_EXTERN is `extern`, but nothing in instances.cc.
LATHE_EXTERN template class std::basic_string<char>;
LATHE_EXTERN template class std::vector<bool>;
LATHE_EXTERN template class std::vector<char>;
LATHE_EXTERN template class std::vector<double>;
LATHE_EXTERN template class std::vector<float>;
LATHE_EXTERN template class std::vector<int>;
LATHE_EXTERN template class std::vector<long>;
LATHE_EXTERN template class std::vector<nlohmann::json>;
LATHE_EXTERN template class std::vector<std::string>;
LATHE_EXTERN template class std::vector<unsigned char>;
LATHE_EXTERN template class std::vector<unsigned long>;
LATHE_EXTERN template class std::map<std::string, double>;
LATHE_EXTERN template class std::map<std::string, nlohmann::json, std::less<>>;
LATHE_EXTERN template class std::map<std::string, std::string>;
LATHE_EXTERN template class nlohmann::basic_json<>;

// Output of values. A test that compares two has it.
#define LATHE_PRINTED(...) \
  LATHE_EXTERN template std::string testing::PrintToString(const __VA_ARGS__&);
LATHE_PRINTED(bool)
LATHE_PRINTED(double)
LATHE_PRINTED(float)
LATHE_PRINTED(int)
LATHE_PRINTED(long)
LATHE_PRINTED(nlohmann::json)
LATHE_PRINTED(std::string)
LATHE_PRINTED(std::vector<double>)
LATHE_PRINTED(std::vector<float>)
LATHE_PRINTED(std::vector<int>)
LATHE_PRINTED(std::vector<long>)
LATHE_PRINTED(std::vector<std::string>)
LATHE_PRINTED(unsigned int)
LATHE_PRINTED(unsigned long)
#undef LATHE_PRINTED

// What EXPECT_EQ says when two differ, and EXPECT_LT and others.
#define LATHE_COMPARED(A, B)                                                                  \
  LATHE_EXTERN template testing::AssertionResult testing::internal::CmpHelperEQFailure<A, B>( \
      const char*, const char*, const A&, const B&);                                          \
  LATHE_EXTERN template testing::AssertionResult testing::internal::CmpHelperOpFailure<A, B>( \
      const char*, const char*, const A&, const B&, const char*);
LATHE_COMPARED(bool, bool)
LATHE_COMPARED(double, double)
LATHE_COMPARED(double, int)
LATHE_COMPARED(float, float)
LATHE_COMPARED(float, int)
LATHE_COMPARED(int, int)
LATHE_COMPARED(int, long)
LATHE_COMPARED(long, int)
LATHE_COMPARED(long, long)
LATHE_COMPARED(nlohmann::json, nlohmann::json)
LATHE_COMPARED(std::string, std::string)
LATHE_COMPARED(std::vector<double>, std::vector<double>)
LATHE_COMPARED(std::vector<float>, std::vector<float>)
LATHE_COMPARED(std::vector<int>, std::vector<int>)
LATHE_COMPARED(std::vector<long>, std::vector<long>)
LATHE_COMPARED(std::vector<std::string>, std::vector<std::string>)
LATHE_COMPARED(unsigned int, unsigned int)
LATHE_COMPARED(unsigned long, int)
LATHE_COMPARED(unsigned long, unsigned int)
LATHE_COMPARED(unsigned long, unsigned long)
#undef LATHE_COMPARED

LATHE_EXTERN template struct testing::internal::SuiteApiResolver<testing::Test>;
LATHE_EXTERN template testing::AssertionResult& testing::AssertionResult::operator<<(
    const char* const&);
LATHE_EXTERN template testing::AssertionResult& testing::AssertionResult::operator<<(
    const std::string&);
LATHE_EXTERN template testing::Message& testing::Message::operator<<(const std::string&);
