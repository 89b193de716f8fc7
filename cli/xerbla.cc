#include <cstddef>
#include <cstdio>
#include <cstdlib>

// LAPACK calls it where an argument of one of its routines is wrong: a defect of
// the caller. LAPACK's own is in Fortran, and all else that CoinUtils uses of
// LAPACK needs no run-time library of Fortran, which a static program then goes
// without. `routine` has `length` characters and no end.
extern "C" [[noreturn]] void xerbla_(const char* routine, const int* argument,
                                     size_t length) {
  std::fprintf(stderr, "acplan: LAPACK's %.*s: argument %d is wrong\n",
               static_cast<int>(length), routine, *argument);
  std::abort();
}
