# Flags for the whole tree: instrumented and plain objects do not mix.
if(ACPLAN_SANITIZE)
  # -O1 and frame pointers: fast enough for every test, readable stack traces.
  add_compile_options(-O1 -fno-omit-frame-pointer -fsanitize=address,undefined
                      -fno-sanitize-recover=all)
  add_compile_definitions(_GLIBCXX_ASSERTIONS)
  add_link_options(-fsanitize=address,undefined)
endif()

if(ACPLAN_COVERAGE)
  # Counters are updated atomically, because the tests start threads.
  add_compile_options(-O0 --coverage -fprofile-update=atomic)
  add_link_options(--coverage)
endif()
