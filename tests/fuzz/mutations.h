#pragma once

#include <random>
#include <string>
#include <string_view>

// What is fed to fuzzers: by libFuzzer (custom_mutator.cc) and without it
// (replay_main.cc).

// An input that the reader under test takes, small and random, the same for equal seeds;
// empty where there is none. Every fuzzer defines it.
std::string ValidInput(unsigned seed);

// The JSON text with one to four changes that leave it JSON: another number, text or
// value at a place, a part of it at another place, an element or member twice, at
// another place or not at all, a field that is called otherwise. Empty where `text` is no
// JSON.
std::string MutateJson(std::string_view text, std::mt19937_64& random);

// `text` with a part of `other`, at another place; empty where one of them is no JSON.
std::string CrossJson(std::string_view text, std::string_view other,
                      std::mt19937_64& random);
