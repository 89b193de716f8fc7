# Installs BUILD_DIR into a fresh prefix and builds and runs consumer/ against
# it. Everything goes below WORK_DIR.
set(prefix "${WORK_DIR}/prefix with space")
set(consumer_build ${WORK_DIR}/consumer)
file(REMOVE_RECURSE ${WORK_DIR})

function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${prefix})
run(${prefix}/bin/acplan --help)
foreach(file IN ITEMS share/man/man1/acplan-plan.1 include/acplan/problems/planner.h
                      share/bash-completion/completions/acplan)
  if(NOT EXISTS ${prefix}/${file})
    message(FATAL_ERROR "${file} was not installed")
  endif()
endforeach()
# A detail of the library.
if(EXISTS ${prefix}/include/acplan/problems/trace/relaxation/branching.h)
  message(FATAL_ERROR "a header that nothing outside may use was installed")
endif()
run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/consumer -B ${consumer_build}
    -G ${GENERATOR} -D CMAKE_CXX_COMPILER=${COMPILER} -D
    CMAKE_CXX_FLAGS=${FLAGS} -D CMAKE_PREFIX_PATH=${prefix})
# Other tests run beside this one.
run(${CMAKE_COMMAND} --build ${consumer_build} --parallel 1)
run(${consumer_build}/consumer ${prefix}/${PROFILE})
