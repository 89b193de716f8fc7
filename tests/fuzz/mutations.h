#pragma once

#include <random>
#include <string>
#include <string_view>

// The inputs of fuzzers, with libFuzzer (custom_mutator.cc) and without it
// (replay_main.cc).

// Returns an input that the reader under test accepts, small and random, the
// same for equal seeds; empty if there is none. Every fuzzer defines it.
std::string ValidInput(unsigned seed);

// Returns the JSON text with one to four changes that leave it JSON: another
// number, text or value at a place, a part of it at another place, an element
// or member repeated, moved or removed, a field renamed. Empty if `text` is no
// JSON.
std::string MutateJson(std::string_view text, std::mt19937_64& random);

// Returns `text` with a part of `other`, at another place; empty if one of them
// is no JSON.
std::string CrossJson(std::string_view text, std::string_view other,
                      std::mt19937_64& random);
