// What the test server's files are made of and known by: addresses, etags, random bytes, a
// certificate.
#include <openssl/evp.h>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>

#include "lathe/tests/hub/hub_server.h"

namespace lathe {
namespace {

std::string Hex(const EVP_MD* kind, const std::string& bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  EVP_Digest(bytes.data(), bytes.size(), digest, &size, kind, nullptr);
  std::string text;
  char digits[3];
  for (unsigned int i = 0; i < size; ++i) {
    std::snprintf(digits, sizeof digits, "%02x", digest[i]);
    text += digits;
  }
  return text;
}

}  // namespace

std::string PercentDecoded(const std::string& text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size()) {
      decoded += static_cast<char>(std::stoi(text.substr(i + 1, 2), nullptr, 16));
      i += 2;
    } else {
      decoded += text[i];
    }
  }
  return decoded;
}

std::string LfsEtag(const std::string& bytes) { return Hex(EVP_sha256(), bytes); }

std::string GitEtag(const std::string& bytes) {
  return Hex(EVP_sha1(), "blob " + std::to_string(bytes.size()) + std::string(1, '\0') + bytes);
}

bool MakeCertificate(const std::string& folder, const std::string& names) {
  const std::string command =
      "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj "
      "/CN=localhost -addext subjectAltName=" +
      names + " -keyout '" + folder + "/key.pem' -out '" + folder + "/cert.pem' >/dev/null 2>&1";
  return std::system(command.c_str()) == 0;
}

std::string RandomBytes(int64_t size, unsigned int seed) {
  std::mt19937 generator(seed);
  std::string bytes(static_cast<size_t>(size), '\0');
  for (char& byte : bytes) byte = static_cast<char>(generator());
  return bytes;
}

}  // namespace lathe
