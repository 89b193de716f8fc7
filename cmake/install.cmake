# `cmake --install`: the program with its data, manual and completion, and for
# development the libraries with their headers and a package for find_package(acplan).
# The library behind the program (cli/) stays private.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/acplan)

install(TARGETS acplan_main COMPONENT program)
install(
  DIRECTORY ${PROJECT_SOURCE_DIR}/data/
  DESTINATION ${CMAKE_INSTALL_DATADIR}/acplan
  COMPONENT program)
install(
  FILES ${PROJECT_SOURCE_DIR}/LICENSE
  DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/acplan
  RENAME copyright
  COMPONENT program)
# Of the library that the program has inside for the pages that it writes.
install(
  FILES ${PROJECT_SOURCE_DIR}/cli/report/vega_license.txt
  DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/acplan
  RENAME copyright.vega
  COMPONENT program)
install(
  CODE "
    set(PROGRAM \"$<TARGET_FILE:acplan_main>\")
    set(WORK \"${PROJECT_BINARY_DIR}/pages\")
    set(FOLDER \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}\")
    include(\"${CMAKE_CURRENT_LIST_DIR}/install_pages.cmake\")"
  COMPONENT program)

install(TARGETS acplan_base EXPORT acplan-targets COMPONENT development)
foreach(folder IN ITEMS graph solver costmodel problems)
  install(TARGETS acplan_${folder} EXPORT acplan-targets COMPONENT development)
endforeach()
install(
  CODE "
    set(SOURCE_DIR \"${PROJECT_SOURCE_DIR}\")
    set(FOLDER \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_INCLUDEDIR}/acplan\")
    include(\"${CMAKE_CURRENT_LIST_DIR}/install_headers.cmake\")"
  COMPONENT development)
install(
  EXPORT acplan-targets
  NAMESPACE acplan::
  DESTINATION ${package_dir}
  COMPONENT development)
configure_package_config_file(
  ${CMAKE_CURRENT_LIST_DIR}/acplan-config.cmake.in
  ${PROJECT_BINARY_DIR}/acplan-config.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(
  ${PROJECT_BINARY_DIR}/acplan-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(
  FILES ${PROJECT_BINARY_DIR}/acplan-config.cmake
        ${PROJECT_BINARY_DIR}/acplan-config-version.cmake
  DESTINATION ${package_dir}
  COMPONENT development)
