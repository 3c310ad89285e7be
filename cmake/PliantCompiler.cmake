# The compiler's settings for every target of this project.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

find_program(PLIANT_CCACHE ccache)
mark_as_advanced(PLIANT_CCACHE)
if(PLIANT_CCACHE AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_C_COMPILER_LAUNCHER "${PLIANT_CCACHE}")
  set(CMAKE_CXX_COMPILER_LAUNCHER "${PLIANT_CCACHE}")
endif()

add_compile_options(-Wall -Wextra -Wconversion)
if(PLIANT_WERROR)
  add_compile_options(-Werror)
endif()

# A sum must have the same bits on every machine: no fused multiply-add unless it is written.
add_compile_options(-ffp-contract=off)

# Nobody replaces a function of ours at load time, so calls inside the library need no detour.
add_compile_options(-fno-semantic-interposition)

if(PLIANT_SANITIZE)
  add_compile_options(-fsanitize=${PLIANT_SANITIZE} -fno-sanitize-recover=all
                      -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${PLIANT_SANITIZE})
endif()

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND
   (PLIANT_SANITIZE OR CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13))
  # GCC's flow analysis takes the sanitizers' checks, and from version 13 on the unused members of a
  # std::variant, for values that are read uninitialised. Version 12 keeps the warning.
  add_compile_options(-Wno-maybe-uninitialized)
endif()
