# `cpack -G DEB` in a build folder: acplan, the program, and libacplan-dev, for programs
# that link the libraries.
set(CPACK_PACKAGE_NAME acplan)
set(CPACK_PACKAGE_CONTACT "The authors of acplan <acplan@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY
    "Plans activation checkpointing under a memory budget")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL program development)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_COMPONENT_PROGRAM_DESCRIPTION
    "The program acplan, optimal activation checkpointing of neural networks in training.")
set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME acplan)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SHLIBDEPS ON)
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION
    "Libraries, headers and a CMake package of acplan.")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libacplan-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
# The program alone needs CLI11, and only sources include toml++, which has no library.
list(REMOVE_ITEM debian_packages libcli11-dev libtomlplusplus-dev)
list(JOIN debian_packages ", " CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS)
include(CPack)
