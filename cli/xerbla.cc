#include <cstddef>
#include <cstdio>
#include <cstdlib>

// LAPACK calls this if an argument of one of its routines is wrong: a defect of
// the caller. LAPACK's own version is in Fortran, and everything else that
// CoinUtils uses of LAPACK needs no run-time library of Fortran, so a static
// program does without one. `routine` has `length` characters and no
// terminator.
extern "C" [[noreturn]] void xerbla_(const char* routine, const int* argument,
                                     size_t length) {
  std::fprintf(stderr, "acplan: LAPACK's %.*s: argument %d is wrong\n",
               static_cast<int>(length), routine, *argument);
  std::abort();
}
