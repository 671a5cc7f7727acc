# cmake --install BUILD --prefix P: the program, what bash and fish need to complete it, its man page, the systemd unit, licences.
include(GNUInstallDirs)
install(TARGETS riptide RUNTIME)
install(FILES LICENSE NOTICE README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES contrib/riptide.service DESTINATION lib/systemd/system)
set(made ${CMAKE_BINARY_DIR}/installed)
install(CODE "execute_process(COMMAND \"${CMAKE_COMMAND}\" -D RIPTIDE=$<TARGET_FILE:riptide> -D VERSION=${PROJECT_VERSION} -D OUT=${made}
  -P \"${CMAKE_SOURCE_DIR}/cmake/write_installed.cmake\" COMMAND_ERROR_IS_FATAL ANY)")
install(FILES ${made}/riptide.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES ${made}/riptide DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
install(FILES ${made}/riptide.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
