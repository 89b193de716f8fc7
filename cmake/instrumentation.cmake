# Flags for the whole tree: instrumented and plain objects do not mix.
if(ACPLAN_SANITIZE)
  # -O1 and frame pointers: fast enough for every test, readable stack traces. The
  # checks left out are a third of what compiling takes. A null pointer and what is
  # beyond an object end in AddressSanitizer, too; nothing here casts pointers to
  # other types.
  add_compile_options(
    -O1 -fno-omit-frame-pointer -fsanitize=address,undefined
    -fno-sanitize=null,alignment,object-size,vptr -fno-sanitize-recover=all)
  add_compile_definitions(_GLIBCXX_ASSERTIONS)
  add_link_options(-fsanitize=address,undefined)
endif()

if(ACPLAN_COVERAGE)
  # Counters are updated atomically, because the tests start threads.
  add_compile_options(-O0 --coverage -fprofile-update=atomic)
  add_link_options(--coverage)
endif()
