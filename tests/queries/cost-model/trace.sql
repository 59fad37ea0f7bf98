-- A usable fit, and one over too few steps.
INSERT INTO cost_model VALUES
    (1, 'with_prefill', 90, 2, 3000000, 20000, 4, 0.98, 150000, 16, 512, true),
    (1, 'decode_only', 5, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, false);
