#pragma once

#include <string>

namespace acplan::solver {

// Returns the versions of COIN-OR that this was built with: "CBC 2.10.8, Clp 1.17.6,
// CoinUtils 2.11.6".
std::string CoinOrVersions();

}  // namespace acplan::solver
