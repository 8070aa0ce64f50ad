"""Leadership: `core` decides, `driver` carries out, `settings` state why the timing is safe."""
