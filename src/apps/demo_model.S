/* The bytes of the demo model, page-aligned, in read-only data. DEMO_MODEL_FILE is set by CMake where the file exists. */
    .section .rodata
    .global riptide_demo_model_begin
    .global riptide_demo_model_end
    .global riptide_demo_template_begin
    .global riptide_demo_template_end
    .balign 4096
riptide_demo_model_begin:
#ifdef DEMO_MODEL_FILE
    .incbin DEMO_MODEL_FILE
#endif
riptide_demo_model_end:
    .byte 0
riptide_demo_template_begin:
    .incbin DEMO_TEMPLATE_FILE
riptide_demo_template_end:
    .byte 0
    .section .note.GNU-stack,"",@progbits
