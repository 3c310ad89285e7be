# How a folder becomes targets. Sources are found by name, so a new file needs no edit here:
#   x.cc       part of the folder's library
#   x_test.cc  part of the folder's one test program
#   x_test.c   a C test program of its own

# pliant_folder(NAME [DEPS folder...] [LIBS library...] [TEST_SHARDS n] [EXCLUDE file...])
#
# Makes the library pliant_NAME out of the sources in and below the current folder and registers the
# test NAME. A folder without sources still gives a target that carries its dependencies.
function(pliant_folder name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TEST_SHARDS" "DEPS;LIBS;EXCLUDE")
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.cc")
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_test\\.cc$")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  foreach(file IN LISTS arg_EXCLUDE)
    list(REMOVE_ITEM sources "${CMAKE_CURRENT_SOURCE_DIR}/${file}")
  endforeach()

  set(target pliant_${name})
  list(TRANSFORM arg_DEPS PREPEND pliant_)
  if(sources)
    add_library(${target} STATIC ${sources})
    target_include_directories(${target} PUBLIC "${PROJECT_SOURCE_DIR}")
    target_link_libraries(${target} PUBLIC ${arg_DEPS} ${arg_LIBS})
    set_property(GLOBAL APPEND PROPERTY PLIANT_FOLDER_TARGETS ${target})
    set_property(GLOBAL APPEND PROPERTY PLIANT_FOLDER_LIBS ${arg_LIBS})
  else()
    add_library(${target} INTERFACE)
    target_include_directories(${target} INTERFACE "${PROJECT_SOURCE_DIR}")
    target_link_libraries(${target} INTERFACE ${arg_DEPS} ${arg_LIBS})
  endif()

  if(PLIANT_TESTS AND tests)
    pliant_gtest(${name} LABEL unit SOURCES ${tests} LIBS ${target} SHARDS "${arg_TEST_SHARDS}")
  endif()
endfunction()

# pliant_gtest(NAME LABEL label SOURCES file... LIBS target... [SHARDS n])
#
# Makes tests/<label>/<name>_test and registers it. One process runs all of a folder's tests,
# because a process a test would spend most of a sanitized run on starting; SHARDS splits it where
# one is long.
function(pliant_gtest name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "LABEL;SHARDS" "SOURCES;LIBS")
  set(target ${name}_test)
  add_executable(${target} ${arg_SOURCES})
  target_link_libraries(${target} PRIVATE ${arg_LIBS} GTest::gtest GTest::gtest_main)
  target_compile_definitions(${target} PRIVATE PLIANT_BUILD_DIR="${PROJECT_BINARY_DIR}"
                                               PLIANT_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  set_target_properties(${target} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests/${arg_LABEL}")

  if(NOT arg_SHARDS)
    set(arg_SHARDS 1)
  endif()
  math(EXPR last "${arg_SHARDS} - 1")
  foreach(shard RANGE ${last})
    set(test ${name})
    if(arg_SHARDS GREATER 1)
      set(test ${name}.${shard})
    endif()
    add_test(NAME ${test} COMMAND ${target} --gtest_brief=1)
    pliant_test_properties(${test} ${arg_LABEL})
    set_property(TEST ${test} APPEND PROPERTY ENVIRONMENT
      GTEST_TOTAL_SHARDS=${arg_SHARDS} GTEST_SHARD_INDEX=${shard})
  endforeach()
endfunction()

# What every test has: a label, a bound, and the two folders by name.
function(pliant_test_properties test label)
  set(bound 300)
  if(PLIANT_SANITIZE)
    set(bound 1500)  # a sanitized program is up to twenty times slower
  endif()
  set_tests_properties(${test} PROPERTIES LABELS ${label} TIMEOUT ${bound}
    ENVIRONMENT "PLIANT_BUILD_DIR=${PROJECT_BINARY_DIR};PLIANT_SOURCE_DIR=${PROJECT_SOURCE_DIR}")
endfunction()

# pliant_suite(LABEL LIBS target... [SHARDS n]), in a folder of tests/:
#   *_test.cc            one gtest program for the folder, together with the sources named neither
#                        so nor *_worker.cc
#   *_worker.cc          a program of its own, tests/<label>/x_worker, for the tests to start
#   *_test.py, *_test.sh a test each; PLIANT_BUILD_DIR and PLIANT_SOURCE_DIR are in its environment
function(pliant_suite label)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "SHARDS" "LIBS")
  file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.cc")
  set(workers ${sources})
  list(FILTER workers INCLUDE REGEX "_worker\\.cc$")
  list(FILTER sources EXCLUDE REGEX "_worker\\.cc$")
  foreach(worker IN LISTS workers)
    get_filename_component(target ${worker} NAME_WE)
    add_executable(${target} ${worker})
    target_link_libraries(${target} PRIVATE ${arg_LIBS})
    set_target_properties(${target} PROPERTIES
      RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests/${label}")
  endforeach()
  if(sources)
    pliant_gtest(${label} LABEL ${label} SOURCES ${sources} LIBS ${arg_LIBS}
                 SHARDS "${arg_SHARDS}")
  endif()

  file(GLOB scripts CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*_test.py"
       "${CMAKE_CURRENT_SOURCE_DIR}/*_test.sh")
  foreach(script IN LISTS scripts)
    get_filename_component(stem ${script} NAME_WE)
    string(REGEX REPLACE "_test$" "" stem ${stem})
    if(script MATCHES "\\.py$")
      add_test(NAME ${label}.${stem} COMMAND Python3::Interpreter ${script})
    else()
      add_test(NAME ${label}.${stem} COMMAND bash ${script})
    endif()
    pliant_test_properties(${label}.${stem} ${label})
  endforeach()
endfunction()

# pliant_header_closure(RESULT header...): the headers and all headers of ours that they include, as
# paths from the root; that is what must be installed for them to compile.
function(pliant_header_closure result)
  set(pending ${ARGN})
  set(closure)
  while(pending)
    list(POP_FRONT pending header)
    if(header IN_LIST closure OR NOT EXISTS "${PROJECT_SOURCE_DIR}/${header}")
      continue()
    endif()
    list(APPEND closure ${header})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
      "${PROJECT_SOURCE_DIR}/${header}")
    file(STRINGS "${PROJECT_SOURCE_DIR}/${header}" lines REGEX "^#include \"pliant/")
    list(TRANSFORM lines REPLACE "^#include \"([^\"]+)\".*$" "\\1")
    list(APPEND pending ${lines})
  endwhile()
  set(${result} ${closure} PARENT_SCOPE)
endfunction()
