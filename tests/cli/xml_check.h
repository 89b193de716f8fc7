#pragma once

#include <string>
#include <string_view>

namespace acplan::cli {

// Returns "" if `text` is well-formed XML with respect to elements, attributes,
// entities and CDATA, else the fault and its place.
std::string XmlFault(std::string_view text);

}  // namespace acplan::cli
