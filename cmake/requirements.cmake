# The libraries that acplan is made of: `debian_packages`, by Debian's names. All that are
# missing are said at once.
set(debian_packages coinor-libcbc-dev coinor-libclp-dev coinor-libcoinutils-dev)
set(missing_packages "")

# acplan_require(DEBIAN_PACKAGE NAME [VERSION]): find_package(NAME VERSION).
macro(acplan_require debian_package name)
  list(APPEND debian_packages ${debian_package})
  find_package(${name} ${ARGN} QUIET)
  if(NOT ${name}_FOUND)
    list(APPEND missing_packages ${debian_package})
  endif()
endmacro()

if(ACPLAN_STATIC)
  set(CMAKE_FIND_LIBRARY_SUFFIXES .a)
  find_package(Threads REQUIRED)  # a static TBB asks for it and does not say so
endif()

acplan_require(nlohmann-json3-dev nlohmann_json 3.11)
acplan_require(zlib1g-dev ZLIB)
acplan_require(libfmt-dev fmt)
acplan_require(libcli11-dev CLI11)
acplan_require(libtbb-dev TBB)
acplan_require(libtomlplusplus-dev tomlplusplus)
acplan_require(pkg-config PkgConfig)
list(APPEND debian_packages libyaml-cpp-dev)
if(PkgConfig_FOUND)
  pkg_check_modules(YAML_CPP QUIET IMPORTED_TARGET yaml-cpp)
  pkg_check_modules(CBC QUIET IMPORTED_TARGET cbc osi-clp)
endif()
if(NOT YAML_CPP_FOUND)
  list(APPEND missing_packages libyaml-cpp-dev)
endif()
if(NOT CBC_FOUND)
  list(APPEND missing_packages coinor-libcbc-dev coinor-libclp-dev
       coinor-libcoinutils-dev)
endif()

# Of the program alone: a library of JavaScript that pages of `acplan report` hold.
find_path(
  VEGA_FOLDER vega-view-transforms.min.js PATHS /usr/share/javascript/vega
  DOC "Folder with Vega's parts, as Debian's libjs-vega has them")
if(NOT VEGA_FOLDER)
  list(APPEND missing_packages libjs-vega)
endif()

if(missing_packages)
  list(JOIN missing_packages " " missing_packages)
  message(
    FATAL_ERROR
      "acplan needs libraries that are not here, or too old. On Debian 12:\n"
      "  apt-get install ${missing_packages}")
endif()
