#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/terminal/terminal.h"

namespace acplan::cli {

// Curves over the unit square in characters, 73 columns by 21 rows, with axes.
// Marks that are added later cover earlier ones; marks outside of the square
// are left out.
class Plot {
 public:
  enum class Style { kPlain, kDim, kGreen, kYellow };
  // The way a curve is drawn; the glyph is one column wide.
  struct Pen {
    std::string glyph;
    Style style = Style::kPlain;
  };

  Plot();
  void AddPoint(double x, double y, const Pen& pen);
  // Adds y at each column, NaN for none; where it jumps, the rows in between
  // too.
  template <typename Function>
  void AddFunction(Function y_at, const Pen& pen) {
    std::vector<double> ys;
    for (int column = 0; column < kColumns; ++column) {
      ys.push_back(y_at(static_cast<double>(column) / (kColumns - 1)));
    }
    AddColumns(ys, pen);
  }
  void AddLegend(const Pen& pen, std::string_view text);

  std::string ToString(const Terminal& terminal, std::string_view x_label,
                       std::string_view y_label) const;

  // The numbers at 0 and 1 of an axis, in the unit that its label says.
  struct Axis {
    std::string label;
    double least = 0;
    double most = 1;

    // Returns an axis of milliseconds, from 0, or of seconds if there are many.
    static Axis OfMs(std::string_view name, double most_ms);
    // Returns an axis of GiB, or of MiB if there are few.
    static Axis OfBytes(std::string_view name, double least, double most);
  };
  // Does the same with the axes' own numbers, in 80 columns.
  std::string ToString(const Terminal& terminal, const Axis& x,
                       const Axis& y) const;

 private:
  // Returns the rows with their axis: `label_of` names a share, in so many
  // columns.
  template <typename Function>
  std::string Rows(const Terminal& terminal, int columns,
                   Function label_of) const;
  std::string Legend(const Terminal& terminal) const;

  static constexpr int kColumns = 73;
  static constexpr int kRows = 21;

  void AddColumns(const std::vector<double>& ys, const Pen& pen);

  std::vector<std::vector<Pen>> rows_;  // from the top
  std::vector<std::pair<Pen, std::string>> legend_;
};

}  // namespace acplan::cli
