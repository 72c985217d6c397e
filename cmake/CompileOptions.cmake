# kvstore_options: what changes the code and so must be the same everywhere (sanitizers).
# kvstore_warnings: our own sources only, never nanobind's or GoogleTest's.

add_library(kvstore_options INTERFACE)
add_library(kvstore_warnings INTERFACE)

target_compile_options(kvstore_warnings INTERFACE -Wall -Wextra)
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  target_compile_options(kvstore_warnings INTERFACE -Wthread-safety)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # False alarms on "literal" + std::string (GCC bug 105651).
  target_compile_options(kvstore_warnings INTERFACE -Wno-restrict)
endif()
if(KVSTORE_WERROR)
  target_compile_options(kvstore_warnings INTERFACE -Wconversion -Wshadow -Werror)
endif()

# -O1 -g1 because instrumented code at -O2 -g takes GCC three times as long, for the same findings.
if(KVSTORE_SANITIZE)
  set(KVSTORE_SANITIZE_FLAGS -fsanitize=${KVSTORE_SANITIZE} -fno-omit-frame-pointer -O1 -g1 -D_GLIBCXX_ASSERTIONS)
  if(KVSTORE_SANITIZE MATCHES "undefined")
    list(APPEND KVSTORE_SANITIZE_FLAGS -fno-sanitize-recover=undefined)
  endif()
  target_compile_options(kvstore_options INTERFACE ${KVSTORE_SANITIZE_FLAGS})
  target_link_options(kvstore_options INTERFACE ${KVSTORE_SANITIZE_FLAGS})
endif()

# Wheels must run on any x86-64, so no instruction set is switched on here: sources named *_avx2.cpp and *_avx512.cpp do
# it themselves, for their own functions, and are called only where the CPU has it. GCC 12's own AVX-512 header
# (avx512fintrin.h, GCC bug 105593) trips these two warnings in whoever includes it.
function(kvstore_instruction_set_sources)
  foreach(source IN LISTS ARGN)
    if(source MATCHES "_avx512\\.cpp$")
      set_property(SOURCE ${source} APPEND PROPERTY COMPILE_OPTIONS -Wno-uninitialized -Wno-maybe-uninitialized)
    endif()
  endforeach()
endfunction()
