SELECT pruned_to FROM participant
