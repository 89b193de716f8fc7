# Runs when acplan is installed, with PROGRAM, WORK (a folder) and FOLDER (share) set: the
# manual and the completion for bash, both of which the program writes from its flags.
cmake_policy(VERSION 3.25)

file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${WORK}/man)
execute_process(COMMAND ${PROGRAM} man ${WORK}/man COMMAND_ERROR_IS_FATAL ANY)
execute_process(
  COMMAND ${PROGRAM} completion bash
  OUTPUT_FILE ${WORK}/acplan COMMAND_ERROR_IS_FATAL ANY)

file(GLOB pages ${WORK}/man/*.1)
file(INSTALL ${pages} DESTINATION ${FOLDER}/man/man1)
file(INSTALL ${WORK}/acplan DESTINATION ${FOLDER}/bash-completion/completions)
