option(ACPLAN_UNITY "Compile several sources at a time" OFF)

# acplan_unity(TARGET [MOST NUMBER] [EXCEPT SOURCE...]): with ACPLAN_UNITY, up to
# about NUMBER of TARGET's sources, or eight, are compiled as one. Most of a build's
# time goes into the same headers and what is instantiated from them, again for
# every source.
#
# A source's group depends on its own name, so that a new source leaves the
# others in theirs. Sources of a group share an anonymous namespace: those whose
# names clash with another's there are EXCEPT, and compiled alone.
function(acplan_unity target)
  if(NOT ACPLAN_UNITY)
    return()
  endif()
  cmake_parse_arguments(ARG "" "MOST" "EXCEPT" ${ARGN})
  if(NOT ARG_MOST)
    set(ARG_MOST 8)
  endif()
  get_target_property(sources ${target} SOURCES)
  list(LENGTH sources count)
  # A power of two: it seldom changes as sources are added.
  set(groups 1)
  while(count GREATER ARG_MOST)
    math(EXPR groups "${groups} * 2")
    math(EXPR count "(${count} + 1) / 2")
  endwhile()
  foreach(source IN LISTS sources)
    string(MD5 digest ${source})
    string(SUBSTRING ${digest} 0 4 digest)
    math(EXPR group "0x${digest} % ${groups}")
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP group_${group})
  endforeach()
  set_source_files_properties(${ARG_EXCEPT} PROPERTIES SKIP_UNITY_BUILD_INCLUSION
                                                       ON)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()
