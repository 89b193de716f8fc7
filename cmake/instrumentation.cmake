# Flags for the whole tree: instrumented and plain objects do not mix.
if(ACPLAN_SANITIZE)
  # -Og and frame pointers: readable stack traces, fast enough for every test, and
  # half of what compiling with -O1 takes. So are the checks that are left out: a
  # null pointer, and what is beyond an object or reached by a pointer that
  # overflowed, end in AddressSanitizer, too; nothing here casts pointers to other
  # types.
  add_compile_options(
    -Og -fno-omit-frame-pointer -fsanitize=address,undefined
    -fno-sanitize=null,alignment,object-size,vptr,pointer-overflow
    -fno-sanitize-recover=all)
  add_compile_definitions(_GLIBCXX_ASSERTIONS)
  add_link_options(-fsanitize=address,undefined)
endif()

if(ACPLAN_COVERAGE)
  # Counters are updated atomically, because the tests start threads.
  add_compile_options(-O0 --coverage -fprofile-update=atomic)
  add_link_options(--coverage)
endif()
