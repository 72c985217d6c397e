# One binary of all tests/cpp/**/*_test.cpp; ctest knows each test by name.

find_package(GTest QUIET)
if(NOT GTest_FOUND)
  message(FATAL_ERROR
    " The C++ tests need GoogleTest. Install it with\n"
    "   Debian, Ubuntu:  apt-get install -y libgtest-dev\n"
    "   Fedora, RHEL:    dnf install -y gtest-devel")
endif()
include(GoogleTest)

file(GLOB_RECURSE KVSTORE_TEST_SOURCES CONFIGURE_DEPENDS tests/cpp/*.cpp)
if(NOT KVSTORE_TEST_SOURCES)
  message(FATAL_ERROR "tests/cpp holds no .cpp file")
endif()
target_compile_definitions(kvstore_core PRIVATE KVSTORE_ABORT_ON_ASSERT)  # a broken invariant ends the test
add_executable(kvstore_tests ${KVSTORE_TEST_SOURCES})
target_include_directories(kvstore_tests PRIVATE tests/cpp)
target_link_libraries(kvstore_tests PRIVATE kvstore_core kvstore_warnings GTest::gtest GTest::gtest_main)
gtest_discover_tests(kvstore_tests DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 300)

# Stand-ins for NVIDIA's libraries, for machines without a GPU. The tests load them by dlopen, as the core does.
file(GLOB KVSTORE_GPU_TEST_SOURCES CONFIGURE_DEPENDS tests/cpp/gpu*/*.cpp)
list(APPEND KVSTORE_GPU_TEST_SOURCES tests/cpp/device/device_conformance_test.cpp)
function(kvstore_fake name source suffix definition)
  add_library(kvstore_fake_${name} SHARED ${source})
  set_target_properties(kvstore_fake_${name} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/fakes
    PREFIX "" OUTPUT_NAME lib${name} SUFFIX ${suffix} NO_SONAME ON)
  target_link_libraries(kvstore_fake_${name} PRIVATE kvstore_options kvstore_warnings Threads::Threads)
  add_dependencies(kvstore_tests kvstore_fake_${name})
  set_property(SOURCE ${KVSTORE_GPU_TEST_SOURCES} APPEND PROPERTY
    COMPILE_DEFINITIONS ${definition}="${PROJECT_BINARY_DIR}/fakes/lib${name}${suffix}")
endfunction()
kvstore_fake(cuda tests/fakes/libcuda.cpp .so.1 KVSTORE_FAKE_LIBCUDA)
# It runs the CPU references of the kernels.
target_sources(kvstore_fake_cuda PRIVATE csrc/gpu/reference_move.cpp csrc/base/status.cpp)
target_include_directories(kvstore_fake_cuda PRIVATE csrc)
kvstore_fake(cufile tests/fakes/libcufile.cpp .so.0 KVSTORE_FAKE_LIBCUFILE)
# For LD_PRELOAD, see its head.
add_library(kvstore_proc_modules SHARED tests/fakes/proc_modules.cpp)
set_target_properties(kvstore_proc_modules PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/fakes
  PREFIX "" OUTPUT_NAME proc_modules)
target_link_libraries(kvstore_proc_modules PRIVATE kvstore_warnings ${CMAKE_DL_LIBS})
add_dependencies(kvstore_tests kvstore_proc_modules)

# What runs on NVIDIA's own libraries as well, without the rest: for scripts/gpu-check and tests/gpu.
add_executable(kvstore_gpu_tests EXCLUDE_FROM_ALL tests/cpp/gpu/real_gpu_test.cpp tests/cpp/gpu/real_cufile_test.cpp
  tests/cpp/gpu_kernels/random_cache.cpp tests/cpp/device/device_conformance_test.cpp)
target_include_directories(kvstore_gpu_tests PRIVATE tests/cpp)
target_link_libraries(kvstore_gpu_tests PRIVATE kvstore_core kvstore_warnings GTest::gtest GTest::gtest_main)
add_dependencies(kvstore_gpu_tests kvstore_fake_cuda kvstore_fake_cufile kvstore_proc_modules)
