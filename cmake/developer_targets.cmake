# Targets for people who work on acplan: format, format-check, lint.
set(source_folders graph solver costmodel problems cli)

add_custom_target(
  format
  COMMAND ${PROJECT_SOURCE_DIR}/scripts/format.sh
  VERBATIM)
add_custom_target(
  format-check
  COMMAND ${PROJECT_SOURCE_DIR}/scripts/format.sh --check
  VERBATIM)

# The files to lint are given as a regular expression for their full paths, and
# are known file by file only where they are compiled so.
list(JOIN source_folders "|" folder_pattern)
add_custom_target(
  lint
  COMMAND ${CMAKE_COMMAND} -S ${PROJECT_SOURCE_DIR} -B lint -G ${CMAKE_GENERATOR} -D
          CMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER} -D ACPLAN_UNITY=OFF
  # GCC's warnings are not all clang's.
  COMMAND run-clang-tidy -quiet -p lint
          -extra-arg=-Wno-unknown-warning-option
          "^${PROJECT_SOURCE_DIR}/(${folder_pattern})/"
  WORKING_DIRECTORY ${PROJECT_BINARY_DIR}
  COMMENT "Running clang-tidy"
  VERBATIM)
