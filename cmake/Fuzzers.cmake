# One libFuzzer binary per tests/fuzz/*_fuzz.cpp. Needs clang; the whole build is instrumented.

if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  message(FATAL_ERROR "KVSTORE_FUZZ needs clang: configure with -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_C_COMPILER=clang")
endif()
target_compile_options(kvstore_core PRIVATE -fsanitize=fuzzer-no-link)
target_compile_definitions(kvstore_core PRIVATE KVSTORE_ABORT_ON_ASSERT)  # hostile bytes must not break an invariant
file(GLOB KVSTORE_FUZZ_SOURCES CONFIGURE_DEPENDS tests/fuzz/*_fuzz.cpp)
foreach(source IN LISTS KVSTORE_FUZZ_SOURCES)
  get_filename_component(name ${source} NAME_WE)
  add_executable(${name} ${source})
  target_link_libraries(${name} PRIVATE kvstore_core kvstore_warnings)
  target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
endforeach()
