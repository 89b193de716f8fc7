#pragma once

#include <random>

#include "graph/profile/profile.h"

namespace acplan::graph {

// Returns a valid profile of `modules` modules with a random tree (several
// roots, names in between that are no modules, modules that are never called),
// random orders and random statistics, drawn from `kinds` different ones.
Profile RandomProfile(std::mt19937& random, int modules, int kinds);

// Returns a module with some statistics that a profile may hold.
Module PlainModule(std::string fqn);

// Returns a profile of modules with these names, called in this order; the
// forward post-order is the post-order of the names' tree.
Profile PlainProfile(const std::vector<std::string>& fqns);

}  // namespace acplan::graph
