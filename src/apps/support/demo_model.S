/* The bytes of the demo model, its drafter and its scorer, page-aligned, in read-only data. DEMO_MODEL_FILE,
   DEMO_DRAFTER_FILE and DEMO_SCORER_FILE are set by CMake where the files exist. And the list of known models. */
    .section .rodata
    .global riptide_demo_model_begin
    .global riptide_demo_model_end
    .global riptide_demo_drafter_begin
    .global riptide_demo_drafter_end
    .global riptide_demo_scorer_begin
    .global riptide_demo_scorer_end
    .global riptide_demo_template_begin
    .global riptide_demo_template_end
    .balign 4096
riptide_demo_model_begin:
#ifdef DEMO_MODEL_FILE
    .incbin DEMO_MODEL_FILE
#endif
riptide_demo_model_end:
    .byte 0
    .balign 4096
riptide_demo_drafter_begin:
#ifdef DEMO_DRAFTER_FILE
    .incbin DEMO_DRAFTER_FILE
#endif
riptide_demo_drafter_end:
    .byte 0
    .balign 4096
riptide_demo_scorer_begin:
#ifdef DEMO_SCORER_FILE
    .incbin DEMO_SCORER_FILE
#endif
riptide_demo_scorer_end:
    .byte 0
riptide_demo_template_begin:
    .incbin DEMO_TEMPLATE_FILE
riptide_demo_template_end:
    .byte 0
    .global riptide_known_models_begin
    .global riptide_known_models_end
riptide_known_models_begin:
    .incbin KNOWN_MODELS_FILE
riptide_known_models_end:
    .byte 0
    .section .note.GNU-stack,"",@progbits
