if(TARGET accelerate-cpp)
  install(TARGETS accelerate-cpp RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
