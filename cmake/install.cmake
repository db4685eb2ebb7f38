# The shared library that programs embed, and everything that `cmake --install` puts in place. The library is made of the same object files as
# the static ones that tests link; it shows nothing but namespace glim::v0 (cmake/exports.map).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# runtime/glim.h says the version too.
file(STRINGS runtime/glim.h version_lines REGEX "^#define GLIM_VERSION_")
string(REGEX REPLACE "[^0-9;]" "" version_numbers "${version_lines}")
list(JOIN version_numbers "." header_version)
if(NOT header_version STREQUAL PROJECT_VERSION)
  message(FATAL_ERROR "runtime/glim.h is version ${header_version}, CMakeLists.txt is ${PROJECT_VERSION}")
endif()

set(objects)
foreach(folder engine ops autodiff models runtime)
  list(APPEND objects $<TARGET_OBJECTS:glim_${folder}>)
endforeach()
add_library(glim_shared SHARED ${objects})
set_target_properties(glim_shared PROPERTIES
  OUTPUT_NAME glim EXPORT_NAME glim LINKER_LANGUAGE CXX LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
  LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/exports.map)
target_link_options(glim_shared PRIVATE LINKER:--version-script=${PROJECT_SOURCE_DIR}/cmake/exports.map LINKER:--as-needed)
if(NOT GLIM_SANITIZE AND NOT GLIM_SANITIZE_THREAD)
  target_link_options(glim_shared PRIVATE LINKER:--no-undefined)
endif()
target_link_libraries(glim_shared PRIVATE fmt::fmt Threads::Threads ${CMAKE_DL_LIBS})
if(GLIM_BLAS STREQUAL "OpenBLAS")
  target_link_libraries(glim_shared PRIVATE ${GLIM_OPENBLAS_LIBRARY})
endif()
if(GLIM_HAS_CUDA)
  target_link_libraries(glim_shared PRIVATE CUDA::cudart CUDA::cublasLt)
endif()
# The CUDA libraries may lie where the loader does not look.
set_target_properties(glim_shared glim PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
target_compile_features(glim_shared INTERFACE cxx_std_20)
target_include_directories(glim_shared INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)

# ---- install
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/glim)
install(TARGETS glim_shared EXPORT glim LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS glim RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(FILES runtime/glim.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/glim)
file(GLOB model_files CONFIGURE_DEPENDS models/*.toml)
install(FILES ${model_files} DESTINATION share/glim/models)

# One file is enough for find_package: the targets file knows no dependency that a user would have to find.
install(EXPORT glim DESTINATION ${package_dir} NAMESPACE glim:: FILE glimConfig.cmake)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/glimConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/glimConfigVersion.cmake DESTINATION ${package_dir})

# pkg-config finds the prefix from where glim.pc lies, so that an installed tree can be moved.
file(RELATIVE_PATH pc_to_prefix /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(cmake/glim.pc.in ${PROJECT_BINARY_DIR}/glim.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/glim.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
