// replay ITERATIONS FILE...: a `main` for a fuzzer without libFuzzer. It feeds
// the fuzzer the files and then mutations of them, of bytes and of JSON
// documents (mutations.h), and newly made inputs, the same ones in every run.

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "tests/fuzz/mutations.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

const std::vector<std::string> kTokens = {"0",
                                          "-1",
                                          "1e999",
                                          "1e18",
                                          "9007199254740992",
                                          "9223372036854775808",
                                          "null",
                                          "true",
                                          "\"\"",
                                          "[]",
                                          "{}",
                                          "NaN",
                                          "1.5",
                                          "\\u0000",
                                          "\xff",
                                          "[[[[",
                                          "-0.0",
                                          "5e-324",
                                          "GiB",
                                          ".",
                                          "kB"};

class Mutator {
 public:
  explicit Mutator(std::vector<std::string> seeds) : seeds_(std::move(seeds)) {}

  std::string Next() {
    std::string text = Pick(seeds_);
    if (Below(16) == 0) {
      const std::string input = ValidInput(static_cast<unsigned>(random_()));
      if (!input.empty()) text = input;
    }
    if (Below(2) == 0) {
      const std::string mutated = Below(8) == 0
                                      ? CrossJson(text, Pick(seeds_), random_)
                                      : MutateJson(text, random_);
      if (!mutated.empty()) return mutated;
    }
    for (size_t i = 1 + Below(4); i > 0; --i) Mutate(text);
    return text;
  }

 private:
  size_t Below(size_t n) { return n == 0 ? 0 : random_() % n; }
  template <typename T>
  const T& Pick(const std::vector<T>& values) {
    return values[Below(values.size())];
  }

  void Mutate(std::string& text) {
    if (text.empty()) text = " ";
    const size_t at = Below(text.size());
    switch (Below(8)) {
      case 0:
        text[at] = static_cast<char>(text[at] ^ (1 << Below(8)));
        break;
      case 1:
        text[at] = static_cast<char>(random_());
        break;
      case 2:
        text.resize(at);
        break;
      case 3:
        text.erase(at, 1 + Below(40));
        break;
      case 4:
        text.insert(at, text.substr(Below(text.size()), 1 + Below(80)));
        break;
      case 5: {
        const std::string& other = Pick(seeds_);
        text = text.substr(0, at) + other.substr(Below(other.size() + 1));
        break;
      }
      default:
        ReplaceNumber(text, at);
    }
  }

  void ReplaceNumber(std::string& text, size_t from) {
    auto is_digit = [](unsigned char c) { return std::isdigit(c) != 0; };
    const auto first = std::find_if(text.begin() + static_cast<ptrdiff_t>(from),
                                    text.end(), is_digit);
    const auto last = std::find_if_not(first, text.end(), is_digit);
    text.replace(first, last, Pick(kTokens));
  }

  std::vector<std::string> seeds_;
  std::mt19937_64 random_{20240607};
};

void Feed(const std::string& text) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(text.data()),
                         text.size());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: replay ITERATIONS FILE...\n";
    return 2;
  }
  std::vector<std::string> seeds;
  for (int i = 2; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    if (!file) {
      std::cerr << argv[i] << ": cannot be read\n";
      return 2;
    }
    seeds.emplace_back(std::istreambuf_iterator<char>(file),
                       std::istreambuf_iterator<char>());
    Feed(seeds.back());
  }
  Mutator mutator(std::move(seeds));
  for (long i = std::atol(argv[1]); i > 0; --i) Feed(mutator.Next());
  return 0;
}
