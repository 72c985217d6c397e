# The Python module kvstore._core. nanobind is the one of the Python environment that builds.

find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module
  OPTIONAL_COMPONENTS Development.SABIModule)  # without it nanobind ignores STABLE_ABI in silence
if(NOT nanobind_DIR)
  execute_process(COMMAND ${Python_EXECUTABLE} -m nanobind --cmake_dir
    OUTPUT_VARIABLE nanobind_DIR OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
endif()
find_package(nanobind CONFIG REQUIRED)

file(GLOB KVSTORE_BINDING_SOURCES CONFIGURE_DEPENDS csrc/binding/*.cpp)
if(NOT KVSTORE_BINDING_SOURCES)
  message(FATAL_ERROR "csrc/binding holds no .cpp file: there is no Python module to build")
endif()
# setup.py copies the module to its place, under the file name of the Python that builds.
# STABLE_ABI takes effect from Python 3.12 on and is ignored before.
nanobind_add_module(kvstore_python STABLE_ABI NB_STATIC NOMINSIZE ${KVSTORE_BINDING_SOURCES})
set_target_properties(kvstore_python PROPERTIES
  OUTPUT_NAME _core SUFFIX .so LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/module)
target_include_directories(kvstore_python SYSTEM PRIVATE ${NB_DIR}/include)
target_link_libraries(kvstore_python PRIVATE kvstore_core kvstore_warnings)
# Nothing of the static libraries is exported: liburing inside the module must not meet another liburing in the process.
target_link_options(kvstore_python PRIVATE -Wl,--exclude-libs,ALL)
if(KVSTORE_STATIC)
  # libgcc stays shared: its static unwinder asks for glibc 2.35, every image has the shared one.
  target_link_options(kvstore_python PRIVATE -static-libstdc++)
endif()
