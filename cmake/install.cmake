# `cmake --install`: the program, the libraries with their headers, the bundled
# profiles, and a package for find_package(acplan). The library behind the
# program (cli/) stays private.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/acplan)

install(TARGETS acplan_base EXPORT acplan-targets)
foreach(folder IN ITEMS graph solver costmodel problems)
  install(TARGETS acplan_${folder} EXPORT acplan-targets)
  install(
    DIRECTORY ${PROJECT_SOURCE_DIR}/${folder}
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/acplan
    FILES_MATCHING
    PATTERN "*.h")
endforeach()
install(TARGETS acplan_main)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/data/
        DESTINATION ${CMAKE_INSTALL_DATADIR}/acplan)

install(
  EXPORT acplan-targets
  NAMESPACE acplan::
  DESTINATION ${package_dir})
configure_package_config_file(
  ${CMAKE_CURRENT_LIST_DIR}/acplan-config.cmake.in
  ${PROJECT_BINARY_DIR}/acplan-config.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(
  ${PROJECT_BINARY_DIR}/acplan-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/acplan-config.cmake
              ${PROJECT_BINARY_DIR}/acplan-config-version.cmake
        DESTINATION ${package_dir})
