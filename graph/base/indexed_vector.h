#pragma once

#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <type_traits>
#include <utility>
#include <vector>

namespace acplan::graph {

// Indices that the compiler tells apart. The things in a trace refer to each other by
// index: operators, storages, calls and some more. If all indices have one type, code
// that opens the storages with an operator compiles. So each kind has its own:
//
//   enum class StorageId : int32_t {};
//   IndexedVector<StorageId, TraceStorage> storages;
//
//   const StorageId first = storages.Add({.bytes = 512});
//   for (const TraceStorage& storage : storages) ...
//   for (const StorageId s : storages.ids()) ... storages[s] ...
//   for (const StorageId s : std::views::reverse(storages.ids())) ...
//   for (const StorageId s : IdRange(first, end)) ...  // without `end`
//
// The compiler refuses storages[call], storages[3], s + 1 and s == call. Next and
// Previous go from one id to another; IndexOf and IdAt convert where code computes with
// places. An id that may be missing is kNone (-1), which is below all others.
//
// All this costs nothing when the program runs. An id is an int32_t, which an optional
// one would double; an IndexedVector is a std::vector and, like it, does not check that
// an id is one of its own: nothing may open it with kNone.

// An enumeration whose values are indices.
template <typename Id>
concept IdType =
    std::is_enum_v<Id> && std::same_as<std::underlying_type_t<Id>, int32_t> &&
    !std::is_convertible_v<Id, int32_t>;

// Returns an id's place in a vector; -1 for kNone.
template <IdType Id>
constexpr int32_t IndexOf(Id id) {
  return static_cast<int32_t>(id);
}

// Returns the id of the thing at a place, which must be below 2^31.
template <IdType Id, std::integral Index>
constexpr Id IdAt(Index index) {
  return static_cast<Id>(index);
}

// Returns the id after this one.
template <IdType Id>
constexpr Id Next(Id id) {
  return IdAt<Id>(IndexOf(id) + 1);
}

// Returns the id before this one; kNone for the first.
template <IdType Id>
constexpr Id Previous(Id id) {
  return IdAt<Id>(IndexOf(id) - 1);
}

// The missing id of every kind.
struct NoId {
  template <IdType Id>
  constexpr operator Id() const {  // NOLINT(google-explicit-constructor)
    return IdAt<Id>(-1);
  }
};
inline constexpr NoId kNone;

template <IdType Id>
constexpr bool operator==(Id id, NoId none) {
  return id == static_cast<Id>(none);
}

// Lets fmt print an id as its number.
template <IdType Id>
constexpr int32_t format_as(Id id) {
  return IndexOf(id);
}

// The ids [first, end), in order. Ranges of the standard library take it, such as
// std::views::reverse.
template <IdType Id>
class IdRange {
 public:
  class Iterator {
   public:
    using iterator_concept = std::random_access_iterator_tag;
    using iterator_category = std::input_iterator_tag;
    using value_type = Id;
    using difference_type = std::ptrdiff_t;
    using reference = Id;
    using pointer = void;

    constexpr Iterator() = default;
    constexpr explicit Iterator(Id id) : index_(IndexOf(id)) {}

    constexpr Id operator*() const { return IdAt<Id>(index_); }
    constexpr Id operator[](difference_type n) const { return *(*this + n); }
    constexpr Iterator& operator++() { return *this += 1; }
    constexpr Iterator& operator--() { return *this -= 1; }
    constexpr Iterator operator++(int) {
      return std::exchange(*this, *this + 1);
    }
    constexpr Iterator operator--(int) {
      return std::exchange(*this, *this - 1);
    }
    constexpr Iterator& operator+=(difference_type n) {
      index_ += static_cast<int32_t>(n);
      return *this;
    }
    constexpr Iterator& operator-=(difference_type n) { return *this += -n; }
    friend constexpr Iterator operator+(Iterator i, difference_type n) {
      return i += n;
    }
    friend constexpr Iterator operator+(difference_type n, Iterator i) {
      return i += n;
    }
    friend constexpr Iterator operator-(Iterator i, difference_type n) {
      return i -= n;
    }
    friend constexpr difference_type operator-(Iterator a, Iterator b) {
      return difference_type{a.index_} - b.index_;
    }
    constexpr auto operator<=>(const Iterator&) const = default;

   private:
    int32_t index_ = 0;
  };

  constexpr IdRange(Id first, Id end) : begin_(first), end_(end) {}

  constexpr Iterator begin() const { return begin_; }
  // Returns begin() if the given end is before it: such a range is empty.
  constexpr Iterator end() const { return end_ < begin_ ? begin_ : end_; }
  constexpr bool empty() const { return begin() == end(); }
  constexpr size_t size() const { return static_cast<size_t>(end() - begin()); }

 private:
  Iterator begin_;
  Iterator end_;
};

// A vector whose elements have ids of one kind. It has std::vector's functions, with ids
// for indices, except those that give elements other ids: erase and insert.
template <IdType Id, typename T>
class IndexedVector {
 public:
  using value_type = T;
  using size_type = size_t;
  using iterator = typename std::vector<T>::iterator;
  using const_iterator = typename std::vector<T>::const_iterator;
  using reference = typename std::vector<T>::reference;
  using const_reference = typename std::vector<T>::const_reference;

  IndexedVector() = default;
  IndexedVector(std::initializer_list<T> values) : values_(values) {}
  explicit IndexedVector(size_t count) : values_(count) {}
  IndexedVector(size_t count, const T& value) : values_(count, value) {}
  explicit IndexedVector(std::vector<T> values) : values_(std::move(values)) {}

  T& operator[](Id id) { return values_[static_cast<size_t>(id)]; }
  const T& operator[](Id id) const { return values_[static_cast<size_t>(id)]; }

  // All ids, in order.
  IdRange<Id> ids() const { return {Id{0}, end_id()}; }
  // The id after the last one, which the next element gets.
  Id end_id() const { return IdAt<Id>(values_.size()); }
  // The last id; kNone if there is none.
  Id last_id() const { return Previous(end_id()); }

  // The elements as a vector, for code without ids.
  const std::vector<T>& values() const { return values_; }

  size_t size() const { return values_.size(); }
  bool empty() const { return values_.empty(); }
  iterator begin() { return values_.begin(); }
  iterator end() { return values_.end(); }
  const_iterator begin() const { return values_.begin(); }
  const_iterator end() const { return values_.end(); }
  T& front() { return values_.front(); }
  const T& front() const { return values_.front(); }
  T& back() { return values_.back(); }
  const T& back() const { return values_.back(); }

  // Appends an element and returns its id.
  Id Add(T value) {
    values_.push_back(std::move(value));
    return last_id();
  }
  void push_back(T value) { values_.push_back(std::move(value)); }
  template <typename... Arguments>
  T& emplace_back(Arguments&&... arguments) {
    return values_.emplace_back(std::forward<Arguments>(arguments)...);
  }
  void pop_back() { values_.pop_back(); }
  void assign(size_t count, const T& value) { values_.assign(count, value); }
  void resize(size_t count) { values_.resize(count); }
  void reserve(size_t count) { values_.reserve(count); }
  void clear() { values_.clear(); }

  auto operator<=>(const IndexedVector&) const = default;
  bool operator==(const IndexedVector&) const = default;

 private:
  std::vector<T> values_;
};

}  // namespace acplan::graph
