# cmake --install BUILD --prefix P: the program, what bash and fish need to complete it, its man page, the systemd unit, licences.
include(GNUInstallDirs)
set_target_properties(riptide PROPERTIES INSTALL_RPATH "$ORIGIN/../lib/riptide")
target_link_options(riptide PRIVATE -Wl,--disable-new-dtags)  # the libraries there find each other, too
install(TARGETS riptide RUNTIME_DEPENDENCY_SET libraries RUNTIME)
install(FILES LICENSE NOTICE README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES contrib/riptide.service DESTINATION lib/systemd/system)
set(made ${CMAKE_BINARY_DIR}/installed)
install(CODE "execute_process(COMMAND \"${CMAKE_COMMAND}\" -D RIPTIDE=$<TARGET_FILE:riptide> -D VERSION=${PROJECT_VERSION} -D OUT=${made}
  -P \"${CMAKE_SOURCE_DIR}/cmake/write_installed.cmake\" COMMAND_ERROR_IS_FATAL ANY)")
install(FILES ${made}/riptide.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES ${made}/riptide DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
install(FILES ${made}/riptide.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)

# --component bundle: all libraries that are not the C library's, in lib/riptide, with their licences (tools/packages.sh).
if(NOT RIPTIDE_STATIC)
  set(c_library "^ld-linux" "^lib(c|m|dl|rt|pthread|resolv)\\.so")
  install(RUNTIME_DEPENDENCY_SET libraries COMPONENT bundle EXCLUDE_FROM_ALL PRE_EXCLUDE_REGEXES ${c_library}
    POST_EXCLUDE_REGEXES "/ld-linux[^/]*$" LIBRARY DESTINATION lib/riptide)
endif()

# cpack -G DEB in a build folder: riptide_VERSION_amd64.deb, with CUDA riptide-cuda, which needs the driver alone.
set(CPACK_PACKAGE_NAME riptide)
if(RIPTIDE_CUDA STREQUAL "ON")
  set(CPACK_PACKAGE_NAME riptide-cuda)
  set(CPACK_DEBIAN_PACKAGE_PROVIDES riptide)
  set(CPACK_DEBIAN_PACKAGE_CONFLICTS riptide)
  set(CPACK_DEBIAN_PACKAGE_RECOMMENDS libcuda1)
endif()
set(CPACK_PACKAGE_VENDOR "the Riptide authors")
set(CPACK_PACKAGE_CONTACT "the Riptide authors <riptide@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "runs Laguna and Qwen3.5 language models on your own machine")
set(CPACK_PACKAGE_DESCRIPTION "A server that clients of OpenAI's and Anthropic's APIs use unchanged, a chat, and benches. Speculative decoding,
 caching and batching change no token.")
set(CPACK_COMPONENTS_ALL Unspecified)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
include(CPack)
