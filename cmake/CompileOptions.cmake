# kvstore_options: what changes the code and so must be the same everywhere (sanitizers).
# kvstore_warnings: our own sources only, never nanobind's or GoogleTest's.

add_library(kvstore_options INTERFACE)
add_library(kvstore_warnings INTERFACE)

target_compile_options(kvstore_warnings INTERFACE -Wall -Wextra)
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  target_compile_options(kvstore_warnings INTERFACE -Wthread-safety)
endif()
if(KVSTORE_WERROR)
  target_compile_options(kvstore_warnings INTERFACE -Wconversion -Wshadow -Werror)
endif()

if(KVSTORE_SANITIZE)
  set(KVSTORE_SANITIZE_FLAGS -fsanitize=${KVSTORE_SANITIZE} -fno-omit-frame-pointer -g)
  if(KVSTORE_SANITIZE MATCHES "undefined")
    list(APPEND KVSTORE_SANITIZE_FLAGS -fno-sanitize-recover=undefined)
  endif()
  target_compile_options(kvstore_options INTERFACE ${KVSTORE_SANITIZE_FLAGS})
  target_link_options(kvstore_options INTERFACE ${KVSTORE_SANITIZE_FLAGS})
endif()

# Wheels must run on any x86-64, so instruction sets are chosen file by file: csrc/**/*_avx2.cpp and *_avx512.cpp get
# their flags here and are called behind __builtin_cpu_supports(). Such a file may include C headers and xxHash only: an
# inline function of the C++ library compiled here could be the copy that the linker keeps for everyone.
# `#ifdef __AVX2__` in the file keeps it empty on other machines.
function(kvstore_instruction_set_sources)
  if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    return()
  endif()
  foreach(source IN LISTS ARGN)
    if(source MATCHES "_avx2\\.cpp$")
      set_property(SOURCE ${source} APPEND PROPERTY COMPILE_OPTIONS -mavx2 -mbmi2)
    elseif(source MATCHES "_avx512\\.cpp$")
      set_property(SOURCE ${source} APPEND PROPERTY COMPILE_OPTIONS -mavx512f -mavx512bw -mavx512dq -mavx512vl -mbmi2)
    endif()
  endforeach()
endfunction()
