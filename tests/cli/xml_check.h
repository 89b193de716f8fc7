#pragma once

#include <string>
#include <string_view>

namespace acplan::cli {

// "" where `text` is well-formed XML as far as elements, attributes, entities
// and CDATA go, else what is wrong and where.
std::string XmlFault(std::string_view text);

}  // namespace acplan::cli
