"""Fine-tuning on instructions: trained sparse and decoded dense (TS^2), beside cross-entropy."""
