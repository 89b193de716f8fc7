#include "solver/cbc_version.h"

#include <CbcConfig.h>
#include <ClpConfig.h>
#include <CoinUtilsConfig.h>

namespace acplan::solver {

std::string CoinOrVersions() {
  return "CBC " CBC_VERSION ", Clp " CLP_VERSION
         ", CoinUtils " COINUTILS_VERSION;
}

}  // namespace acplan::solver
