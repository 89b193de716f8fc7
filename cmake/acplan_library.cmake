# acplan_library(NAME SOURCES ... [PUBLIC ...] [PRIVATE ...])
#
# One static library a folder, `acplan::NAME`, with the folder's dependencies.
# Headers are found as "NAME/header.h" from one include root, so the compiler
# would find those of any folder: tests/structure checks that a folder includes
# and links only what it may know.
function(acplan_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(acplan_${name} STATIC ${ARG_SOURCES})
  add_library(acplan::${name} ALIAS acplan_${name})
  target_include_directories(
    acplan_${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
                          $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/acplan>)
  target_link_libraries(acplan_${name} PUBLIC ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE})
  target_compile_features(acplan_${name} PUBLIC cxx_std_20)
  set_target_properties(acplan_${name} PROPERTIES EXPORT_NAME ${name})
  acplan_warnings(acplan_${name})
endfunction()

function(acplan_warnings target)
  # Indices are int, as in COIN-OR's interfaces, and meet size_t at every
  # container: -Wsign-conversion would ask for casts there and find nothing.
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow
                                           -Wconversion -Wno-sign-conversion)
  # GCC 12 warns falsely inside of std::string ("a" + string; GCC bug 105651).
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
  if(ACPLAN_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
endfunction()
