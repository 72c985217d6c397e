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
add_library(kvstore_fake_cuda SHARED tests/fakes/libcuda.cpp)
set_target_properties(kvstore_fake_cuda PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/fakes
  PREFIX "" OUTPUT_NAME libcuda SUFFIX .so.1 NO_SONAME ON)
target_link_libraries(kvstore_fake_cuda PRIVATE kvstore_options kvstore_warnings Threads::Threads)
add_dependencies(kvstore_tests kvstore_fake_cuda)
set_property(SOURCE ${KVSTORE_GPU_TEST_SOURCES} APPEND PROPERTY
  COMPILE_DEFINITIONS KVSTORE_FAKE_LIBCUDA="${PROJECT_BINARY_DIR}/fakes/libcuda.so.1")
