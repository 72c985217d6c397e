# Compiles csrc/gpu/kernels to one fatbin, which csrc/gpu/kernel_image.cpp embeds as bytes. Nothing of CUDA is linked,
# and where nvcc is missing the library is built without, and says why when it is asked for a kernel.
#
# KVSTORE_CUDA: auto, where nvcc is found; 1, it must be; 0, never. KVSTORE_NVCC names one that is neither on the PATH
# nor under CUDA_HOME. It comes with the CUDA toolkit, 12.8 or later; docs/gpu.md says how to have it from PyPI.

set(KVSTORE_CUDA "auto" CACHE STRING "Compile the CUDA kernels: auto, 0 or 1")
set_property(CACHE KVSTORE_CUDA PROPERTY STRINGS auto 0 1)

# Machine code for what has KV caches, and the oldest PTX of it, which the driver compiles for all others from there on.
set(KVSTORE_CUDA_ARCHITECTURES 80 90 100 120)
set(KVSTORE_CUDA_PTX 80)

set(KVSTORE_CUDA_ABSENT "")
if(KVSTORE_CUDA STREQUAL "0" OR KVSTORE_CUDA STREQUAL "OFF")
  set(KVSTORE_CUDA_ABSENT "this build was configured with KVSTORE_CUDA=0")
else()
  find_program(KVSTORE_NVCC NAMES nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin)
  set(KVSTORE_NVCC_SAID "")
  if(KVSTORE_NVCC)
    execute_process(COMMAND ${KVSTORE_NVCC} --version OUTPUT_VARIABLE KVSTORE_NVCC_SAID ERROR_QUIET)
  endif()
  if(NOT KVSTORE_NVCC)
    set(KVSTORE_CUDA_ABSENT "nvcc was not found when this was built")
  elseif(NOT KVSTORE_NVCC_SAID MATCHES "release ([0-9]+\\.[0-9]+)")
    set(KVSTORE_CUDA_ABSENT "nvcc did not say its version when this was built")
  elseif(CMAKE_MATCH_1 VERSION_LESS 12.8)
    set(KVSTORE_CUDA_ABSENT "this was built with nvcc ${CMAKE_MATCH_1}; 12.8 is the first that knows sm_100 and sm_120")
  endif()
  if(KVSTORE_CUDA_ABSENT AND NOT KVSTORE_CUDA STREQUAL "auto")
    message(FATAL_ERROR
      " KVSTORE_CUDA=${KVSTORE_CUDA} needs nvcc 12.8 or later: ${KVSTORE_CUDA_ABSENT}.\n"
      " Name it with -DKVSTORE_NVCC=..., or get it as docs/gpu.md says.")
  endif()
endif()

if(KVSTORE_CUDA_ABSENT)
  set_property(SOURCE csrc/gpu/kernel_image.cpp APPEND PROPERTY COMPILE_DEFINITIONS
    KVSTORE_KERNELS_ABSENT="${KVSTORE_CUDA_ABSENT}")
else()
  set(KVSTORE_FATBIN ${PROJECT_BINARY_DIR}/kvstore_kernels.fatbin)
  set(KVSTORE_GENCODE -gencode arch=compute_${KVSTORE_CUDA_PTX},code=compute_${KVSTORE_CUDA_PTX})
  foreach(architecture IN LISTS KVSTORE_CUDA_ARCHITECTURES)
    list(APPEND KVSTORE_GENCODE -gencode arch=compute_${architecture},code=sm_${architecture})
  endforeach()
  # -v writes registers and shared memory of each kernel beside the fatbin, where docs/gpu.md has them from.
  file(GLOB KVSTORE_KERNEL_SOURCES CONFIGURE_DEPENDS csrc/gpu/kernels/*)
  add_custom_command(OUTPUT ${KVSTORE_FATBIN}
    COMMAND ${KVSTORE_NVCC} -fatbin -std=c++17 -O3 -I${PROJECT_SOURCE_DIR}/csrc ${KVSTORE_GENCODE}
      -Xfatbin -compress-all -Xptxas -v -Werror all-warnings -o ${KVSTORE_FATBIN}
      ${PROJECT_SOURCE_DIR}/csrc/gpu/kernels/kernels.cu > ${KVSTORE_FATBIN}.txt 2>&1 ||
      ${CMAKE_COMMAND} -DFILE=${KVSTORE_FATBIN}.txt -P ${PROJECT_SOURCE_DIR}/cmake/ShowAndFail.cmake
    DEPENDS ${KVSTORE_KERNEL_SOURCES}
    COMMENT "Compiling the CUDA kernels"
    VERBATIM)
  set_property(SOURCE csrc/gpu/kernel_image.cpp APPEND PROPERTY OBJECT_DEPENDS ${KVSTORE_FATBIN})
  set_property(SOURCE csrc/gpu/kernel_image.cpp APPEND PROPERTY COMPILE_DEFINITIONS
    KVSTORE_KERNELS_FATBIN="${KVSTORE_FATBIN}")
endif()
