# What the core needs: liburing and the xxHash headers (xxHash is compiled inline, never linked).

find_package(Threads REQUIRED)
find_path(URING_INCLUDE_DIR NAMES liburing.h)
find_path(XXHASH_INCLUDE_DIR NAMES xxhash.h)
if(KVSTORE_STATIC)
  find_library(URING_LIBRARY_STATIC NAMES liburing.a)
  set(KVSTORE_URING_LIBRARY "${URING_LIBRARY_STATIC}")
else()
  find_library(URING_LIBRARY NAMES uring)
  set(KVSTORE_URING_LIBRARY "${URING_LIBRARY}")
endif()

set(KVSTORE_MISSING "")
if(NOT URING_INCLUDE_DIR OR NOT KVSTORE_URING_LIBRARY)
  list(APPEND KVSTORE_MISSING "liburing")
endif()
if(NOT XXHASH_INCLUDE_DIR)
  list(APPEND KVSTORE_MISSING "xxHash")
endif()
if(KVSTORE_MISSING)
  list(JOIN KVSTORE_MISSING " and " KVSTORE_MISSING)
  # The indent keeps CMake from re-flowing the lines, so that the commands can be copied.
  message(FATAL_ERROR
    " kvstore needs the development files of ${KVSTORE_MISSING}. Install them with\n"
    "   Debian, Ubuntu:  apt-get install -y liburing-dev libxxhash-dev\n"
    "   Fedora, RHEL:    dnf install -y liburing-devel xxhash-devel\n"
    " and build again.")
endif()

add_library(kvstore_uring INTERFACE)
target_include_directories(kvstore_uring SYSTEM INTERFACE ${URING_INCLUDE_DIR} ${XXHASH_INCLUDE_DIR})
target_link_libraries(kvstore_uring INTERFACE ${KVSTORE_URING_LIBRARY})
