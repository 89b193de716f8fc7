# Installs what a wheel has of the build (pyproject.toml): the program, the bundled data
# beside it, the version and the figures of GPUs. It is a component of its own, so that a
# build folder that a wheel was made from installs what any other does.
if(NOT SKBUILD)
  return()
endif()

install(
  TARGETS acplan_main
  RUNTIME DESTINATION ${SKBUILD_SCRIPTS_DIR}
          COMPONENT wheel
          EXCLUDE_FROM_ALL)
install(
  DIRECTORY ${PROJECT_SOURCE_DIR}/data/
  DESTINATION ${SKBUILD_DATA_DIR}/share/acplan
  COMPONENT wheel
  EXCLUDE_FROM_ALL)
install(
  FILES ${PROJECT_SOURCE_DIR}/VERSION ${PROJECT_SOURCE_DIR}/data/training/systems.json
        ${PROJECT_SOURCE_DIR}/data/devices/links.csv
  DESTINATION ${SKBUILD_PLATLIB_DIR}/acplan
  COMPONENT wheel
  EXCLUDE_FROM_ALL)
# The stand-in for a CUDA device, compiled for some versions of PyTorch.
if(ACPLAN_GUARDS)
  install(
    DIRECTORY ${ACPLAN_GUARDS}/
    DESTINATION ${SKBUILD_PLATLIB_DIR}/acplan/_device/guards
    COMPONENT wheel
    EXCLUDE_FROM_ALL)
endif()
# Of what a static program has inside.
if(ACPLAN_LICENSES)
  install(
    DIRECTORY ${ACPLAN_LICENSES}/
    DESTINATION ${SKBUILD_METADATA_DIR}/licenses/libraries
    COMPONENT wheel
    EXCLUDE_FROM_ALL)
endif()
