dnl SPDX-License-Identifier: Apache-2.0

dnl HDT_WITH(NAME, VAR, PKG-CONFIG MODULES, WHAT IT IS FOR)
dnl Adds --with-NAME: "yes" fails when it is missing, "no" leaves it out, the default uses it when
dnl it is there. Sets HAVE_VAR (config.h and automake), VAR_CFLAGS, VAR_LIBS, a summary line.
AC_DEFUN([HDT_WITH], [
  AC_ARG_WITH([$1], [AS_HELP_STRING([--with-$1], [$4 @<:@default: if present@:>@])],
    [], [with_$1=auto])
  hdt_have_$1=no
  AS_IF([test "x$with_$1" != xno], [
    PKG_CHECK_MODULES([$2], [$3], [hdt_have_$1=yes], [
      AS_IF([test "x$with_$1" != xauto], [AC_MSG_ERROR([--with-$1: $3 not found])])])])
  AS_IF([test "$hdt_have_$1" = yes],
    [AC_DEFINE([HAVE_$2], [1], [Define when $1 is used: $4.])],
    [AS_IF([test "x$with_$1" = xno], [hdt_have_$1="off (--without-$1)"], [hdt_have_$1="not found"])])
  AM_CONDITIONAL([HAVE_$2], [test "$hdt_have_$1" = yes])
])

dnl HDT_WITH_CUDA
dnl --with-cuda[=DIR] finds nvcc, the run-time headers and library, and sees that nvcc compiles for
dnl every architecture of CUDA_ARCH. Sets NVCC, HDT_NVCCFLAGS (always needed; NVCCFLAGS is the
dnl user's), CUDA_CPPFLAGS, CUDA_LIBS.
AC_DEFUN([HDT_WITH_CUDA], [
  AC_ARG_WITH([cuda], [AS_HELP_STRING([--with-cuda@<:@=DIR@:>@],
    [CUDA device module @<:@default: off; DIR defaults to /usr/local/cuda@:>@])], [], [with_cuda=no])
  AC_ARG_VAR([NVCC], [CUDA compiler])
  AC_ARG_VAR([NVCCFLAGS], [CUDA compiler flags @<:@-O3@:>@])
  AC_ARG_VAR([CUDA_ARCH], [devices that the CUDA module is compiled for, oldest first, separated by
    ';': their machine code, and portable code of the last for newer ones. sm_90a:
    sm_90 with the instructions that only it has @<:@sm_80;sm_90a@:>@])
  hdt_have_cuda="off (--with-cuda turns it on)"
  AS_IF([test "x$with_cuda" != xno], [
    AS_IF([test "x$with_cuda" = xyes], [hdt_cuda_dir=/usr/local/cuda], [hdt_cuda_dir=$with_cuda])
    AC_PATH_PROG([NVCC], [nvcc], [], [$hdt_cuda_dir/bin:$PATH])
    AS_IF([test -z "$NVCC"], [AC_MSG_ERROR([--with-cuda: nvcc is not in $hdt_cuda_dir/bin])])
    AS_IF([test -f "$hdt_cuda_dir/include/cuda_runtime.h"], [],
      [AC_MSG_ERROR([--with-cuda: $hdt_cuda_dir/include/cuda_runtime.h is missing])])
    hdt_cuda_lib=
    for hdt_dir in lib64 lib targets/`uname -m`-linux/lib; do
      AS_IF([test -z "$hdt_cuda_lib" && test -f "$hdt_cuda_dir/$hdt_dir/libcudart.so"],
        [hdt_cuda_lib=$hdt_cuda_dir/$hdt_dir])
    done
    AS_IF([test -f "$hdt_cuda_dir/include/cublasLt.h"], [],
      [AC_MSG_ERROR([--with-cuda: $hdt_cuda_dir/include/cublasLt.h is missing (libcublas-dev)])])
    AS_IF([test -n "$hdt_cuda_lib"], [],
      [AC_MSG_ERROR([--with-cuda: libcudart.so is not in $hdt_cuda_dir/lib64 or lib])])
    : ${NVCCFLAGS=-O3}
    : ${CUDA_ARCH="sm_80;sm_90a"}
    HDT_NVCC_ARCH
    HDT_NVCCFLAGS="-std=c++17 -forward-unknown-to-host-compiler $hdt_nvcc_arch"
    HDT_NVCCFLAGS="$HDT_NVCCFLAGS -Wall -Wextra -Wshadow -fvisibility=hidden -fno-exceptions"
    AS_IF([test "x$enable_werror" = xyes],
      [HDT_NVCCFLAGS="$HDT_NVCCFLAGS --Werror=all-warnings --compiler-options=-Werror"])
    HDT_NVCC_WORKS
    CUDA_CPPFLAGS="-isystem $hdt_cuda_dir/include"
    CUDA_LIBS="-L$hdt_cuda_lib -Wl,-rpath,$hdt_cuda_lib -lcublasLt -lcudart"
    AC_DEFINE([HAVE_CUDA], [1], [Define when the CUDA module is built.])
    hdt_have_cuda="yes ($NVCC, $CUDA_ARCH)"
  ])
  AC_SUBST([HDT_NVCCFLAGS])
  AC_SUBST([CUDA_CPPFLAGS])
  AC_SUBST([CUDA_LIBS])
  AM_CONDITIONAL([HAVE_CUDA], [test -n "$CUDA_CPPFLAGS"])
])

dnl hdt_nvcc_arch from CUDA_ARCH.
AC_DEFUN([HDT_NVCC_ARCH], [
  hdt_nvcc_arch=
  hdt_number=
  for hdt_arch in `echo "$CUDA_ARCH" | tr ';,' '  '`; do
    hdt_number=${hdt_arch#sm_}
    AS_CASE([$hdt_arch], [sm_@<:@0-9@:>@@<:@0-9@:>@*], [],
      [AC_MSG_ERROR([CUDA_ARCH: '$hdt_arch' is not of the form sm_90])])
    AS_IF([test "${hdt_number%%@<:@a-z@:>@}" -lt 80],
      [AC_MSG_ERROR([CUDA_ARCH: $hdt_arch has no products of bf16 and no asynchronous copies: sm_80 is the oldest])])
    AS_IF([test $hdt_arch = sm_90],
      [AC_MSG_WARN([CUDA_ARCH: sm_90 leaves out the kernels made for H100 and H200: say sm_90a])])
    hdt_nvcc_arch="$hdt_nvcc_arch -gencode=arch=compute_$hdt_number,code=sm_$hdt_number"
    AS_IF([test $hdt_arch = sm_90a], [hdt_nvcc_arch="$hdt_nvcc_arch -DHDT_CUDA_SM_90A"])
  done
  dnl Code of an architecture's own instructions (sm_90a) is not portable: that of sm_90 is.
  hdt_number=${hdt_number%@<:@a-z@:>@}
  AS_IF([test -n "$hdt_number"], [], [AC_MSG_ERROR([CUDA_ARCH is empty])])
  hdt_nvcc_arch="$hdt_nvcc_arch -gencode=arch=compute_$hdt_number,code=compute_$hdt_number"
])

dnl nvcc knows neither every architecture nor every version of the host's compiler: say so here.
AC_DEFUN([HDT_NVCC_WORKS], [
  AC_MSG_CHECKING([whether $NVCC compiles for $CUDA_ARCH])
  echo '__global__ void kernel(int *x) { *x = 1; }' >conftest.cu
  AS_IF([$NVCC $HDT_NVCCFLAGS $NVCCFLAGS -c conftest.cu -o conftest.o >&AS_MESSAGE_LOG_FD 2>&1],
    [AC_MSG_RESULT([yes])],
    [AC_MSG_RESULT([no])
     AC_MSG_ERROR([--with-cuda: nvcc fails; config.log has its words. Choose devices with CUDA_ARCH, another host compiler with NVCCFLAGS=-ccbin=...])])
  rm -f conftest.cu conftest.o
])

dnl Gloo, the peer of scripts/bench allreduce: only a bench uses it.
AC_DEFUN([HDT_CHECK_GLOO], [
  AC_LANG_PUSH([C++])
  AC_CHECK_HEADER([gloo/allreduce.h], [hdt_have_gloo=yes], [hdt_have_gloo="not found (libgloo-dev)"])
  AC_LANG_POP([C++])
  AM_CONDITIONAL([HAVE_GLOO], [test "$hdt_have_gloo" = yes])
])

dnl HDT_ARG_SANITIZE: --enable-sanitize=address,undefined or =thread.
AC_DEFUN([HDT_ARG_SANITIZE], [
  AC_ARG_ENABLE([sanitize], [AS_HELP_STRING([--enable-sanitize=LIST],
    [build with sanitizers: address,undefined or thread])], [], [enable_sanitize=no])
  AS_IF([test "x$enable_sanitize" != xno], [
    HDT_CFLAGS="$HDT_CFLAGS -fsanitize=$enable_sanitize -fno-omit-frame-pointer"
    LDFLAGS="$LDFLAGS -fsanitize=$enable_sanitize"
    AC_DEFINE([HDT_SANITIZE], [1], [Define in builds with sanitizers.])])
])

dnl HDT_SUMMARY: what was found and what is off, at the end of configure.
AC_DEFUN([HDT_SUMMARY], [
  AC_MSG_NOTICE([
  HDT $PACKAGE_VERSION
    prefix      $prefix
    compiler    $CC $CFLAGS
    openblas    $hdt_have_openblas
    liburing    $hdt_have_liburing
    verbs       $hdt_have_verbs
    cuda        $hdt_have_cuda
    criterion   $hdt_have_criterion
    gloo        $hdt_have_gloo
  ])
])
