#pragma once

#include <string_view>

namespace acplan::cli {

// Returns a part of pages, as do the functions below: text in the program,
// embedded when it is built (cmake/embed_page.cmake) from the files beside this
// one.
std::string_view PageStyle();       // page.css
std::string_view PageScript();      // page.js
std::string_view StepScript();      // step.js
std::string_view DeviceScript();    // device.js
std::string_view ModulesScript();   // modules.js
std::string_view SearchScript();    // search.js
std::string_view LengthsScript();   // lengths.js
std::string_view LibraryScript();   // Vega, which draws the charts
std::string_view LibraryLicense();  // vega_license.txt

}  // namespace acplan::cli
