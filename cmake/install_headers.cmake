# Runs when acplan is installed, with SOURCE_DIR and FOLDER (of the headers) set.
#
# The headers that are meant to be used are those that the program itself is made with
# (cli/), and what these include. All others are details of the libraries.
cmake_policy(VERSION 3.25)

set(rooms "graph|solver|costmodel|problems")

file(GLOB_RECURSE pending ${SOURCE_DIR}/cli/*.cc ${SOURCE_DIR}/cli/*.h)
set(headers "")
while(pending)
  list(POP_FRONT pending file)
  file(STRINGS ${file} includes REGEX "^#include \"(${rooms})/")
  foreach(include IN LISTS includes)
    string(REGEX REPLACE "^#include \"(.*)\".*" "\\1" header "${include}")
    if(NOT header IN_LIST headers)
      list(APPEND headers ${header})
      list(APPEND pending ${SOURCE_DIR}/${header})
    endif()
  endforeach()
endwhile()

foreach(header IN LISTS headers)
  get_filename_component(room ${header} DIRECTORY)
  file(INSTALL ${SOURCE_DIR}/${header} DESTINATION ${FOLDER}/${room})
endforeach()
