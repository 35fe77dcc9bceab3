// Which names of options and variables stand for secrets, such as HF_TOKEN. Programs show the
// values of other names only.
#pragma once

#include <string>
#include <string_view>

namespace lathe {

// Returns true if a variable of this name may hold a secret: its name has TOKEN, KEY, SECRET, PASS,
// CREDENTIAL or AUTH anywhere in it.
bool MayNameSecret(std::string_view name);

// Returns true if the name ends with such a word, in any case: "hub_token" and "--api-key", but not
// "tokenizer_name". An option's value may then be a secret.
bool EndsAsSecret(std::string_view name);

// Returns the word up to the value of the first variable in it that may hold a secret: "HF_TOKEN="
// or "--export=ALL,HF_TOKEN=". What follows is left out, too, since a secret may have any
// characters.
std::string WithoutSecret(const std::string& word);

}  // namespace lathe
