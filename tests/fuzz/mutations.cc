#include "tests/fuzz/mutations.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

// A change of bytes seldom gets past the parser, and past the check of names
// and indices, but most of a reader comes after that. So changes are made to
// the document: numbers mostly become a neighbour, since most are indices and
// times, and parts move between places of the same document, where names and
// indices have a meaning.

namespace {

using nlohmann::ordered_json;

using Random = std::mt19937_64;

size_t Below(Random& random, size_t n) { return n == 0 ? 0 : random() % n; }

constexpr std::array<double, 10> kOddNumbers = {-1,
                                                0,
                                                0.5,
                                                1e-300,
                                                2147483647,
                                                2147483648,
                                                9007199254740991,
                                                9007199254740992,
                                                9.3e18,
                                                1e300};
constexpr std::array<std::string_view, 8> kOddTexts = {
    "", "a", ".", "root", "\x1b[2J", "\xe2\x80\xae", "NaN", "None"};

ordered_json Number(double value) {
  // As files write whole numbers.
  if (std::abs(value) < 9e18 && value == std::trunc(value))
    return static_cast<int64_t>(value);
  return value;
}

ordered_json OddValue(Random& random) {
  switch (Below(random, 6)) {
    case 0:
      return nullptr;
    case 1:
      return random() % 2 == 0;
    case 2:
      return ordered_json::array();
    case 3:
      return ordered_json::object();
    case 4:
      return kOddTexts[Below(random, kOddTexts.size())];
    default:
      return Number(kOddNumbers[Below(random, kOddNumbers.size())]);
  }
}

void Collect(ordered_json& value, std::vector<ordered_json*>& places) {
  places.push_back(&value);
  if (!value.is_structured()) return;
  for (ordered_json& part : value) Collect(part, places);
}

std::vector<ordered_json*> PlacesOf(ordered_json& document) {
  std::vector<ordered_json*> places;
  Collect(document, places);
  return places;
}

void MutateNumber(ordered_json& number, Random& random) {
  const double value = number.get<double>();
  switch (Below(random, 8)) {
    case 0:
      number = Number(kOddNumbers[Below(random, kOddNumbers.size())]);
      return;
    case 1:
      number = Number(value * 2);
      return;
    case 2:
      number = value + 0.25;
      return;
    case 3:
      number = Number(-value);
      return;
    default:
      number = Number(value + (random() % 2 == 0 ? 1 : -1) *
                                  static_cast<double>(1 + Below(random, 3)));
  }
}

// Repeats, moves or removes an element.
void MutateArray(ordered_json& array, Random& random) {
  const auto at = static_cast<ptrdiff_t>(Below(random, array.size()));
  const auto to = static_cast<ptrdiff_t>(Below(random, array.size()));
  switch (Below(random, 3)) {
    case 0:
      array.erase(array.begin() + at);
      return;
    case 1: {
      const ordered_json element = array[at];
      array.insert(array.begin() + to, element);
      return;
    }
    default:
      std::swap(array[at], array[to]);
  }
}

// Removes or renames a member.
void MutateObject(ordered_json& object, Random& random) {
  auto member = object.begin();
  std::advance(member, Below(random, object.size()));
  const std::string key = member.key();
  if (random() % 2 == 0) {
    object.erase(key);
    return;
  }
  const ordered_json value = member.value();
  object[random() % 2 == 0 ? key + "x" : std::string("name")] = value;
  if (random() % 2 == 0) object.erase(key);
}

void MutateOnce(ordered_json& document, Random& random) {
  const std::vector<ordered_json*> places = PlacesOf(document);
  ordered_json& place = *places[Below(random, places.size())];
  switch (Below(random, 8)) {
    case 0:
      place = OddValue(random);
      return;
    case 1: {
      const ordered_json part = *places[Below(random, places.size())];
      place = part;
      return;
    }
    default:
      break;
  }
  if (place.is_number()) {
    MutateNumber(place, random);
  } else if (place.is_array() && !place.empty()) {
    MutateArray(place, random);
  } else if (place.is_object() && !place.empty()) {
    MutateObject(place, random);
  } else if (place.is_boolean()) {
    place = !place.get<bool>();
  } else {
    // A name that others have.
    const ordered_json part = *places[Below(random, places.size())];
    if (part.is_string()) place = part;
  }
}

// Parses a document. Returns nothing if it is no JSON, or too deep for its
// reader.
ordered_json Parsed(std::string_view text) {
  ordered_json document = ordered_json::parse(
      text,
      [](int depth, ordered_json::parse_event_t, const ordered_json&) {
        return depth < 64;
      },
      /*allow_exceptions=*/false);
  return document;
}

std::string Text(const ordered_json& document) {
  return document.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace

std::string MutateJson(std::string_view text, std::mt19937_64& random) {
  ordered_json document = Parsed(text);
  if (document.is_discarded()) return "";
  for (size_t k = 1 + Below(random, 4); k > 0; --k)
    MutateOnce(document, random);
  return Text(document);
}

std::string CrossJson(std::string_view text, std::string_view other,
                      std::mt19937_64& random) {
  ordered_json document = Parsed(text);
  ordered_json source = Parsed(other);
  if (document.is_discarded() || source.is_discarded()) return "";
  const std::vector<ordered_json*> places = PlacesOf(document);
  const std::vector<ordered_json*> parts = PlacesOf(source);
  *places[Below(random, places.size())] = *parts[Below(random, parts.size())];
  return Text(document);
}
