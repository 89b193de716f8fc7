option(ACPLAN_UNITY "Compile several sources at a time" OFF)
if(ACPLAN_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC looks for garbage whenever its memory has grown by a third, which takes a tenth of
  # the time of such groups. Few of them need the gigabyte (in KiB) from which it does so here.
  add_compile_options(--param=ggc-min-heapsize=1000000)
endif()

# acplan_unity(TARGET [GROUPS REGEX...] [EXCEPT SOURCE...]): with ACPLAN_UNITY, the
# sources of TARGET whose paths begin with the same REGEX are compiled as one, and so are
# all others. Most of a build's time goes into the same headers and into what is
# instantiated from them, again for every compilation.
#
# A group has up to about 6,000 lines: compiling it takes a gigabyte of memory at most, and
# two cores are busy until the end. Sources of a group share an anonymous namespace; those
# whose names clash there are EXCEPT, and compiled alone.
#
# acplan_unity(TARGET [MOST NUMBER] [EXCEPT SOURCE...]) makes groups of about NUMBER
# sources, or eight, of one folder. A source's group depends on its own name, so that a new
# source leaves the others in theirs.
function(acplan_unity target)
  if(NOT ACPLAN_UNITY)
    return()
  endif()
  cmake_parse_arguments(ARG "" "MOST" "GROUPS;EXCEPT" ${ARGN})
  if(NOT ARG_MOST)
    set(ARG_MOST 8)
  endif()
  get_target_property(sources ${target} SOURCES)
  list(LENGTH sources count)
  # A power of two: it seldom changes as sources are added.
  set(parts 1)
  while(count GREATER ARG_MOST)
    math(EXPR parts "${parts} * 2")
    math(EXPR count "(${count} + 1) / 2")
  endwhile()
  foreach(source IN LISTS sources)
    if(ARG_GROUPS)
      set(source_group others)
      foreach(group IN LISTS ARG_GROUPS)
        if(source MATCHES "^(${group})")
          string(MAKE_C_IDENTIFIER "${group}" source_group)
          break()
        endif()
      endforeach()
    else()
      string(MD5 digest ${source})
      string(SUBSTRING ${digest} 0 4 digest)
      math(EXPR source_group "0x${digest} % ${parts}")
    endif()
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP
                                                     group_${source_group})
  endforeach()
  set_source_files_properties(${ARG_EXCEPT} PROPERTIES SKIP_UNITY_BUILD_INCLUSION
                                                       ON)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()

# acplan_precompile(TARGET HEADER...): with ACPLAN_UNITY, TARGET's sources begin with these
# headers, which are parsed once. acplan_precompile(TARGET LIKE OTHER): with those of OTHER,
# as they were compiled for it; both have the same flags. ccache does not keep what is
# compiled so, unless it is told to be sloppy: with a launcher, all is compiled as written.
function(acplan_precompile target)
  if(NOT ACPLAN_UNITY OR CMAKE_CXX_COMPILER_LAUNCHER)
    return()
  endif()
  cmake_parse_arguments(ARG "" "LIKE" "" ${ARGN})
  if(ARG_LIKE)
    target_precompile_headers(${target} REUSE_FROM ${ARG_LIKE})
  else()
    target_precompile_headers(${target} PRIVATE ${ARG_UNPARSED_ARGUMENTS})
  endif()
endfunction()
